// SPDX-License-Identifier: Apache-2.0

// Package replica is a replicated log that serves as a load for networks: three
// replicas agree over UDP on the order of a client's requests. One replica leads. It
// sends each request to the others as an entry, and a majority commits it. There are
// no elections: the measurement covers the path of messages, not the protocol.
//
// message.go has the messages. node.go and client.go handle them without a clock or a
// socket. socket.go and guest.go carry them through the system's stack or as the
// guest of a vhost-user port. run.go runs a member, report.go has the result.
package replica

import (
	"encoding/binary"
	"fmt"
)

// Replicas have the numbers below Client.
const (
	Replicas = 3
	Client   = Replicas
	majority = Replicas/2 + 1
)

// MaxRequests is the greatest number of requests of a run: replicas keep the whole
// log.
const MaxRequests = 1 << 20

// Kinds of messages.
const (
	propose = 1 + iota // client to leader: Request, payload
	appendE            // leader to followers: Index, Request, payload
	ack                // follower to leader: Index is stored
	reply              // leader to client: Request is committed at Index
	query              // client to all: asks for a status
	status             // replica to client: number and digest of its entries, and its processor time
	stop               // client to all: end
)

// Message is a datagram.
type Message struct {
	Kind    byte
	From    byte
	Index   uint64
	Request uint64
	// Digest, and processor time in nanoseconds, of a status.
	Digest       uint64
	User, System int64
}

// payload is the bytes of a request or entry behind the head. They are a function of
// the request: a log's digest shows whether they arrived.
const (
	headLen     = 2 + 5*8
	payloadLen  = 64
	MessageSize = headLen + payloadLen
)

// encode writes the message to b, of MessageSize bytes, and returns its length.
func (m *Message) encode(b []byte) int {
	b[0], b[1] = m.Kind, m.From
	for i, v := range []uint64{m.Index, m.Request, m.Digest, uint64(m.User), uint64(m.System)} {
		binary.BigEndian.PutUint64(b[2+8*i:], v)
	}
	if m.Kind != propose && m.Kind != appendE {
		return headLen
	}
	for i := range payloadLen / 8 {
		binary.BigEndian.PutUint64(b[headLen+8*i:], word(m.Request, i))
	}
	return MessageSize
}

// word returns part i of a request's payload.
func word(request uint64, i int) uint64 { return (request*8 + uint64(i) + 1) * 0x9e3779b97f4a7c15 }

// decode reads a message.
func decode(b []byte) (Message, error) {
	if len(b) < headLen {
		return Message{}, fmt.Errorf("a message of %d bytes", len(b))
	}
	field := func(i int) uint64 { return binary.BigEndian.Uint64(b[2+8*i:]) }
	m := Message{Kind: b[0], From: b[1], Index: field(0), Request: field(1), Digest: field(2), User: int64(field(3)), System: int64(field(4))}
	if m.From > Client || m.Kind < propose || m.Kind > stop || m.Index > MaxRequests || m.Request >= MaxRequests {
		return m, fmt.Errorf("a message of kind %d from %d, index %d, request %d", m.Kind, m.From, m.Index, m.Request)
	}
	if m.Kind == propose || m.Kind == appendE {
		if len(b) < MessageSize {
			return m, fmt.Errorf("an entry of %d bytes", len(b))
		}
		for i := range payloadLen / 8 {
			if binary.BigEndian.Uint64(b[headLen+8*i:]) != word(m.Request, i) {
				return m, fmt.Errorf("the payload of request %d is not what was sent", m.Request)
			}
		}
	}
	return m, nil
}
