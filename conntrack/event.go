// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"fmt"
	"slices"

	"weft/internal/shm"
	"weft/packet"
)

// This file reports the beginning, changes and end of connections to the control process. The control
// process asks for the reports with Watch. Without reports, an event costs only the test of one word. All
// workers write to one ring under the table's lock, so the events of a connection are in order. If the ring
// is full, an event is lost and counted; no worker waits.

// eventRingBytes is the size of the event ring: about 10,000 events.
const eventRingBytes = 1 << 20

// EventKind says what has happened to a connection: its beginning, a change or its end.
type EventKind uint8

// Kinds of event.
const (
	eventNew EventKind = iota
	eventUpdate
	eventDestroy
	eventKinds
)

// AllEvents is the set of all event kinds, one bit each.
const AllEvents = 1<<eventKinds - 1

var eventNames = [eventKinds]string{"new", "update", "destroy"}

// String returns the name of the event kind in commands and output.
func (k EventKind) String() string { return eventNames[k%eventKinds] }

// ParseEventKind returns the event kind with this name.
func ParseEventKind(name string) (EventKind, bool) {
	i := slices.Index(eventNames[:], name)
	return EventKind(i), i >= 0
}

// Reason is the reason why a connection changed or ended.
type Reason uint8

// Reasons for an event. reasonState and reasonMark are reasons of eventUpdate, all
// others of eventDestroy.
const (
	reasonNone  Reason = iota
	reasonState        // new state, with its timeout
	reasonMark         // new ct_mark or ct_label
	endExpired
	endEvicted
	endFlushed
	endReplaced
	reasons
)

var reasonNames = [reasons]string{"", "state", "mark", "timeout", "eviction", "flush", "successor"}

// String returns the reason's name in output, or "" for reasonNone.
func (r Reason) String() string { return reasonNames[r%reasons] }

// ended returns the counter of connections that have ended for this reason.
func (c *Counters) ended(reason Reason) *uint64 {
	switch reason {
	case endEvicted:
		return &c.Evicted
	case endFlushed:
		return &c.Flushed
	case endReplaced:
		return &c.Replaced
	}
	return &c.Expired
}

// Event is one event of a connection. Entry is the connection at the time of the event; its
// TimeoutS is 0.
type Event struct {
	Kind   EventKind
	Reason Reason
	Entry  Entry
}

// Layout of the word settings.events, which Watch writes: the zone in the lower 16 bits, then the bit
// eventOneZone, and from bit eventKindsAt on one bit for each kind of event.
const (
	eventOneZone = 1 << 16
	eventKindsAt = 17
)

// Watch selects the kinds of events that workers report (one bit each, see AllEvents; 0: none) and
// the zone of the connections (nil: all zones). The control process calls Watch.
func (m *Memory) Watch(kinds uint8, zone *uint16) {
	v := uint32(kinds&AllEvents) << eventKindsAt
	if zone != nil && v != 0 {
		v |= eventOneZone | uint32(*zone)
	}
	m.settings.events.Store(v)
}

// Events returns the consumer of the event ring. The ring may have only one consumer.
func (m *Memory) Events() *shm.Consumer { return shm.NewConsumer(m.events) }

// EventsLost returns the number of events lost because the ring was full, since the
// table was made.
func (m *Memory) EventsLost() uint64 { return m.head.eventsLost.Load() }

// watched reports whether the control process watches events of this kind in a zone.
func (t *Table) watched(kind EventKind, zone uint16) bool {
	v := t.settings.events.Load()
	return v>>(eventKindsAt+uint32(kind))&1 != 0 && (v&eventOneZone == 0 || uint16(v) == zone)
}

// emitUpdate reports a change of connection n. It does nothing if n no longer has generation g, because it
// has ended or changed again. The caller holds no lock.
func (t *Table) emitUpdate(c *conn, n, g uint32, reason Reason) {
	if !t.watched(eventUpdate, c.tuples[0].zone()) {
		return
	}
	t.lock()
	if c.generation() == g {
		t.emitEvent(n, eventUpdate, reason)
	}
	t.unlock()
}

// Layout of an event in the ring, little endian. Each line gives an offset in bytes,
// the fields from there on, and the size of each field:
//
//	 0 kind, reason, class, phases of both sides, 1 byte unused; 1 byte each
//	 6 flags                                       16 bits
//	 8 number, generation, mark, window ends of both sides, 4 bytes unused; 32 bits each
//	32 label, both tuples' words                   64 bits each
//	80 addresses of an IPv6 connection             8 words of 64 bits
const (
	eventBytes     = 80
	eventLongBytes = eventBytes + 64
)

// emitEvent writes an event of connection n to the ring. The caller holds the table's
// lock.
func (t *Table) emitEvent(n uint32, kind EventKind, reason Reason) {
	c := &t.conns[n]
	if !t.watched(kind, c.tuples[0].zone()) {
		return
	}
	size := eventBytes
	if c.tuples[0].ipv6() {
		size = eventLongBytes
	}
	msg := t.eventRing.Reserve(size)
	if msg == nil {
		t.head.eventsLost.Store(t.head.eventsLost.Load() + 1)
		return
	}
	var peers [2]peer
	if hasPeers(c.tuples[0].proto()) {
		peers = t.peers[n]
	}
	var label [2]uint64
	if c.flags&connLabelled != 0 {
		label = t.labels[n]
	}
	le := binary.LittleEndian
	msg[0], msg[1], msg[2], msg[3], msg[4], msg[5] = byte(kind), byte(reason), byte(c.class), byte(peers[0].phase), byte(peers[1].phase), 0
	le.PutUint16(msg[6:], c.flags)
	le.PutUint32(msg[8:], n)
	le.PutUint32(msg[12:], c.generation())
	le.PutUint32(msg[16:], c.mark)
	le.PutUint32(msg[20:], peers[0].end)
	le.PutUint32(msg[24:], peers[1].end)
	le.PutUint32(msg[28:], 0)
	for i, v := range [...]uint64{label[0], label[1], c.tuples[0].a, c.tuples[0].b, c.tuples[1].a, c.tuples[1].b} {
		le.PutUint64(msg[32+8*i:], v)
	}
	if size == eventLongBytes {
		for i, v := range t.addresses(n) {
			le.PutUint64(msg[eventBytes+8*i:], v)
		}
	}
	t.eventRing.Commit()
	t.eventRing.Publish()
}

// ParseEvent decodes a message of the event ring, in the layout above. Only the control process
// calls it.
func ParseEvent(msg []byte) (Event, error) {
	if len(msg) != eventBytes && len(msg) != eventLongBytes || msg[0] >= byte(eventKinds) || msg[1] >= byte(reasons) {
		return Event{}, fmt.Errorf("invalid connection event of %d bytes", len(msg))
	}
	le := binary.LittleEndian
	word := func(i int) uint64 { return le.Uint64(msg[32+8*i:]) }
	var long addresses
	for i := range (len(msg) - eventBytes) / 8 {
		long[i] = le.Uint64(msg[eventBytes+8*i:])
	}
	flags := le.Uint16(msg[6:])
	ev := Event{Kind: EventKind(msg[0]), Reason: Reason(msg[1]), Entry: Entry{
		Ref:     Ref{le.Uint32(msg[8:]), le.Uint32(msg[12:])},
		Orig:    words{word(2), word(3)}.tuple((*[4]uint64)(long[:4])),
		Reply:   words{word(4), word(5)}.tuple((*[4]uint64)(long[4:])),
		Replied: flags&connReplied != 0, SNAT: flags&connSNAT != 0, DNAT: flags&connDNAT != 0,
		Class: Class(msg[2]) % classes,
	}}
	e := &ev.Entry
	if flags&connLabelled != 0 {
		e.Mark, e.Label = le.Uint32(msg[16:]), [2]uint64{word(0), word(1)}
	}
	switch e.Orig.Proto {
	case packet.ProtoTCP:
		e.State, _ = stateOf(phase(msg[3]), phase(msg[4]))
	case packet.ProtoSCTP:
		e.Tags = [2]uint32{le.Uint32(msg[20:]), le.Uint32(msg[24:])}
	}
	return ev, nil
}
