package vhost

import (
	"unsafe"

	"golang.org/x/time/rate"
)

// TearPublish leaves a packed ring as a device does that dies in the middle of a
// publish: the record says what was under way, and the last written elements of
// it are the guest's already. It returns the number of elements under way.
func (d *Device) TearPublish(vring, written int) int {
	for _, r := range d.rings {
		if r.index != vring {
			continue
		}
		n := int(r.done - r.published)
		if r.flight != nil {
			r.inflightBegin()
		}
		*r.state = packedRecordState(r.first, r.published, uint16(n))
		for i, at := 0, r.first; i < n; i++ {
			e := r.element(r.published + uint16(i))
			if n-i <= written {
				*(*uint64)(unsafe.Add(r.packedDesc(at), 8)) = usedElement(e, at)
			}
			at = r.after(at, uint32(e>>16&0xffff))
		}
		return n
	}
	return 0
}

// Unbudgeted lets the front end of a session send as much as it likes, for tests that
// repeat something more often than the budget allows.
func (s *Session) Unbudgeted() { s.budget.SetLimit(rate.Inf) }

// Exhaust leaves a session a budget of so many messages for the next days.
func (s *Session) Exhaust(messages int) {
	s.budget.SetLimit(1e-6)
	s.budget.SetBurst(messages)
}
