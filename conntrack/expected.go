// SPDX-License-Identifier: Apache-2.0

package conntrack

import "fmt"

// Expected is an announced connection that has not begun, as the control process lists it. Its
// source port is 0, which stands for any port.
type Expected struct {
	Tuple  Tuple
	Parent Tuple // original direction of the connection that announced it
	// Mark and Label are copies of the parent connection's values. The new connection
	// will inherit them.
	Mark  uint32
	Label [2]uint64
	// TimeoutS is the number of seconds until the announcement expires.
	TimeoutS uint32
}

// EachExpected calls visit for every announced connection that has not begun. now is CLOCK_MONOTONIC
// in nanoseconds. Workers continue meanwhile; EachExpected leaves out an announcement that changes
// while it is copied.
func (m *Memory) EachExpected(now uint64, visit func(*Expected)) {
	for n := range min(m.head.expects.fresh, MaxExpectations) {
		var e Expected
		if m.expectedEntry(n, now, &e) {
			visit(&e)
		}
	}
}

func (m *Memory) expectedEntry(n uint32, now uint64, e *Expected) bool {
	x := m.expectations[n]
	if x.expiresNS < now || x.parent.Number >= uint32(len(m.conns)) {
		return false
	}
	c := &m.conns[x.parent.Number]
	before := c.meta.Load()
	if before&1 == 0 || c.born != x.parent.Generation {
		return false
	}
	long := m.addresses(x.parent.Number)
	*e = Expected{
		Tuple:    Tuple{Src: x.src, Dst: x.dst, DstPort: x.dstPort, Zone: x.zone, Proto: x.proto, IPv6: x.ipv6 != 0},
		Parent:   c.tuples[0].tuple((*[4]uint64)(long[:4])),
		TimeoutS: uint32((x.expiresNS - now) / 1_000_000_000),
	}
	if c.flags&connLabelled != 0 {
		e.Mark, e.Label = c.mark, m.labels[x.parent.Number]
	}
	return c.metaAfter() == before && m.expectations[n] == x
}

// AppendTo appends the line of ovs-dpctl dump-conntrack-exp, without a newline.
func (e *Expected) AppendTo(buf []byte) []byte {
	buf = append(buf, ProtoName(e.Tuple.Proto)...)
	buf = append(buf, ",orig=("...)
	buf = append(appendTuple(buf, &e.Tuple), ')')
	if e.Tuple.Zone != 0 {
		buf = fmt.Appendf(buf, ",zone=%d", e.Tuple.Zone)
	}
	buf = appendMarkAndLabel(buf, e.Mark, e.Label)
	buf = append(buf, ",parent=("...)
	return append(appendTuple(buf, &e.Parent), ')')
}
