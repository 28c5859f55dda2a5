// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strings"
)

// Subtypes of Nicira's actions for set_queue and pop_queue.
const (
	nxSetQueue = 4
	nxPopQueue = 5
)

func init() {
	addAction(ActSetQueue, actionRow{words: map[string]actionParse{"set_queue": (*actionParser).setQueue}, format: formatQueue, rank: rankSet,
		encode: (*actionEncoder).appendQueue, whole: true,
		nicira: map[uint16]niciraRow{nxSetQueue: {6, func(_ *actionDecoder, _ uint16, b []byte) (Action, error) {
			return Action{Kind: ActSetQueue, Value: Value64(uint64(be.Uint32(b[2:])))}, nil
		}}}})
	addAction(ActPopQueue, actionRow{words: map[string]actionParse{"pop_queue": (*actionParser).popQueue}, format: formatQueue,
		encode: (*actionEncoder).appendQueue, whole: true, nicira: map[uint16]niciraRow{nxPopQueue: {6, decodeBare(ActPopQueue)}}})
	addAction(ActEnqueue, actionRow{words: map[string]actionParse{"enqueue": (*actionParser).enqueue}, format: formatQueue,
		encode: (*actionEncoder).appendQueue, whole: true})
}

// This file has the actions set_queue, pop_queue and enqueue in text and on the wire (ovs-actions(7),
// "Queues").

func (p *actionParser) setQueue(t token) (Action, error) {
	v, ok := parseUint(t.value, 1<<32-1)
	if !ok {
		return Action{}, wrong(t.text, "set_queue:NUMBER")
	}
	return Action{Kind: ActSetQueue, Value: Value64(v)}, nil
}

func (p *actionParser) popQueue(token) (Action, error) { return Action{Kind: ActPopQueue}, nil }

func (p *actionParser) enqueue(t token) (Action, error) {
	at := strings.IndexAny(t.value, ":,")
	if at < 0 {
		return Action{}, wrong(t.text, "enqueue:PORT:QUEUE")
	}
	no, err := parsePort(strings.TrimSpace(t.value[:at]), p.names)
	if err != nil {
		return Action{}, err
	}
	if !isOnePort(no) {
		return Action{}, wrong(t.text, "a port's number or name, in_port or local")
	}
	v, ok := parseUint(strings.TrimSpace(t.value[at+1:]), 1<<32-1)
	if !ok {
		return Action{}, wrong(t.text, "enqueue:PORT:QUEUE")
	}
	return Action{Kind: ActEnqueue, Port: no, Value: Value64(v)}, nil
}

// isOnePort reports whether an output to this number reaches one port at most. This holds for ordinary
// ports, IN_PORT and LOCAL, but not for FLOOD or NORMAL.
func isOnePort(number uint32) bool {
	return number < PortMax || number == PortInPort || number == PortLocal
}

func formatQueue(a *Action, names Names) string {
	switch a.Kind {
	case ActSetQueue:
		return fmt.Sprintf("set_queue:%d", a.Value[1])
	case ActPopQueue:
		return "pop_queue"
	}
	return fmt.Sprintf("enqueue:%s:%d", formatPort(a.Port, names), a.Value[1])
}

// appendQueue appends set_queue, pop_queue or enqueue with padding and length. Only OpenFlow 1.0 has enqueue:
// later versions get a set_queue, an output and a pop_queue.
func (e *actionEncoder) appendQueue(b []byte, a *Action) []byte {
	start, v := len(b), uint32(a.Value[1])
	switch {
	case a.Kind == ActPopQueue:
		return endAction(appendZeros(appendNX(b, nxPopQueue), 6), start)
	case a.Kind == ActSetQueue && e.v == Version10:
		return endAction(be.AppendUint32(appendZeros(appendNX(b, nxSetQueue), 2), v), start)
	case a.Kind == ActSetQueue:
		return endAction(be.AppendUint32(appendHeader(b, wireSetQueue), v), start)
	case e.v == Version10:
		b = appendZeros(be.AppendUint16(appendHeader(b, wire10Enqueue), uint16(a.Port)), 6)
		return endAction(be.AppendUint32(b, v), start)
	}
	set := *a
	set.Kind = ActSetQueue
	b = e.appendQueue(b, &set)
	b = endAction(e.output(b, a.Port, 0), len(b))
	return e.appendQueue(b, &Action{Kind: ActPopQueue})
}

func decodeEnqueue(a []byte) (Action, error) {
	if len(a) != 16 {
		return Action{}, errActionLen
	}
	port := uint32(be.Uint16(a[4:]))
	if !isOnePort(port) {
		return Action{}, coded(ErrActionBadOutPort, fmt.Sprintf("enqueue: %d: expected a port, in_port or local", port))
	}
	return Action{Kind: ActEnqueue, Port: port, Value: Value64(uint64(be.Uint32(a[12:])))}, nil
}
