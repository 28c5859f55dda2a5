// SPDX-License-Identifier: Apache-2.0

// Package replica is a replicated log that serves as a load for networks. Three
// replicas agree over UDP on the order of a client's requests. Replica 0 is the
// leader. It sends each request to the followers as a log entry, and an entry is
// committed when a majority has it. There are no elections, because the benchmark
// measures the path of messages and not the protocol.
//
// The file message.go defines the messages. node.go and client.go handle messages without a
// clock or a socket. socket.go sends messages through the kernel's stack, and guest.go sends
// them as the guest of a vhost-user port. run.go runs a member, and report.go has the result.
package replica

import (
	"encoding/binary"
	"fmt"
)

// Members are numbered: 0 to Replicas-1 are the replicas, Client is the client.
const (
	Replicas = 3
	Client   = Replicas
	majority = Replicas/2 + 1
)

// maxRequests is the largest number of requests of a run. It limits the memory of the
// replicas, which keep the whole log.
const maxRequests = 1 << 20

// Kinds of messages.
const (
	propose = 1 + iota // client to leader: Request, payload
	appendE            // from leader to followers; has Index, Request and a payload
	ack                // follower to leader: Index is stored
	reply              // from leader to client: the request is committed at Index
	query              // from client to replicas: asks for a status message
	status             // from replica to client: number and digest of the log entries, CPU time
	stop               // from client to replicas: ends the replica
)

// Message is a decoded datagram.
type Message struct {
	Kind    byte
	From    byte
	Index   uint64
	Request uint64
	// Digest of the replica's log, and the replica's CPU time in nanoseconds. Only a
	// status message has them.
	Digest       uint64
	User, System int64
}

// The payload follows the header. The request number determines the payload, so a
// receiver can check it.
const (
	headLen     = 2 + 5*8
	payloadLen  = 64
	messageSize = headLen + payloadLen
)

// encode writes the message to b, at least messageSize bytes, and returns its length.
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
	return messageSize
}

func word(request uint64, i int) uint64 { return (request*8 + uint64(i) + 1) * 0x9e3779b97f4a7c15 }

func decode(b []byte) (Message, error) {
	if len(b) < headLen {
		return Message{}, fmt.Errorf("a message of %d bytes", len(b))
	}
	field := func(i int) uint64 { return binary.BigEndian.Uint64(b[2+8*i:]) }
	m := Message{Kind: b[0], From: b[1], Index: field(0), Request: field(1), Digest: field(2), User: int64(field(3)), System: int64(field(4))}
	if m.From > Client || m.Kind < propose || m.Kind > stop || m.Index > maxRequests || m.Request >= maxRequests {
		return m, fmt.Errorf("a message of kind %d from %d, index %d, request %d", m.Kind, m.From, m.Index, m.Request)
	}
	if m.Kind == propose || m.Kind == appendE {
		if len(b) < messageSize {
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
