// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// Queue is a queue of a port with its counters. TxErrors counts frames that were dropped
// because they exceeded the queue's rate.
type Queue struct {
	Port, ID                     uint32
	TxPackets, TxBytes, TxErrors uint64
	DurationNS                   uint64
}

// allQueues selects all queues of a port (OpenFlow 1.5, 7.3.5.9.2).
const allQueues = 0xffffffff

// QueueSelection says about which queues a request is: one queue or all queues, of one port or of all ports.
// If AllQueues is true, Queue has no meaning. If AllPorts is true, Port has none.
type QueueSelection struct {
	Port      uint32
	AllPorts  bool
	Queue     uint32
	AllQueues bool
}

// Has reports whether the selection contains the queue.
func (s *QueueSelection) Has(q *Queue) bool {
	return (s.AllPorts || s.Port == q.Port) && (s.AllQueues || s.Queue == q.ID)
}

// DecodeQueueSelection decodes a request for information about queues. A QueueConfigRequest is about all
// queues of a port or of all ports.
func DecodeQueueSelection(r *Request) (s QueueSelection, err error) {
	b := reader{b: r.Body}
	if r.Version == v10 {
		s.Port = uint32(b.u16())
		s.AllPorts = s.Port == of.PortAll || s.Port == of.PortNone
		b.skip(2)
	} else if wire := b.u32(); wire == anyPort {
		s.AllPorts = true
	} else if port, ok := of.PortFromWire(wire); ok {
		s.Port = port
	} else {
		return s, coded(of.ErrQueueBadPort, "queues of port %d: expected a port", wire)
	}
	s.Queue = allQueues
	if r.Kind != QueueConfigRequest {
		s.Queue = b.u32()
	}
	s.AllQueues = s.Queue == allQueues
	return s, b.err("queues")
}

// AppendQueueStats appends the counters of a queue to a reply.
func AppendQueueStats(b []byte, v Version, q *Queue) []byte {
	switch {
	case v == v10:
		b = zeros(be.AppendUint16(b, uint16(q.Port)), 2)
	case v < v14:
		b = be.AppendUint32(b, of.WirePort(q.Port))
	default:
		b = be.AppendUint32(zeros(be.AppendUint16(b, 48), 6), of.WirePort(q.Port))
	}
	b = be.AppendUint32(b, q.ID)
	for _, n := range []uint64{q.TxBytes, q.TxPackets, q.TxErrors} {
		b = be.AppendUint64(b, n)
	}
	if v != v10 {
		b = appendDuration(b, q.DurationNS)
	}
	return b
}

// AppendQueueDesc appends the description of a queue (OpenFlow 1.4 and later). It leaves out the queue's
// rates, as Open vSwitch does, because OpenFlow expresses them as fractions of the port's speed.
func AppendQueueDesc(b []byte, q *Queue) []byte {
	b = be.AppendUint32(be.AppendUint32(b, of.WirePort(q.Port)), q.ID)
	return zeros(be.AppendUint16(b, 16), 6)
}

// AppendQueueConfig appends the reply to a QueueConfigRequest about a port. It omits the
// queues' rates.
func AppendQueueConfig(r *Request, port uint32, queues []Queue) []byte {
	kind := uint8(TypeQueueConfig)
	if r.Version == v10 {
		kind -= 2
	}
	b := Begin(nil, r.Version, kind, r.XID)
	if r.Version == v10 {
		b = zeros(be.AppendUint16(b, uint16(port)), 6)
	} else {
		b = zeros(be.AppendUint32(b, of.WirePort(port)), 4)
	}
	for i := range queues {
		b = be.AppendUint32(b, queues[i].ID)
		if r.Version == v10 {
			b = zeros(be.AppendUint16(b, 8), 2)
		} else {
			b = zeros(be.AppendUint16(be.AppendUint32(b, of.WirePort(queues[i].Port)), 16), 6)
		}
	}
	return End(b, 0)
}
