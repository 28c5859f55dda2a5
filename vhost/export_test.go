// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"time"
	"unsafe"

	"golang.org/x/time/rate"
)

// TearPublish leaves a packed ring as a device that died during publishing: the
// record shows all used elements, the ring only the last ones. It returns their
// number.
func (d *Device) TearPublish(vring, written int) int {
	for _, r := range d.rings {
		if r.index != vring {
			continue
		}
		n := int(r.usedCount - r.published)
		if r.flight != nil {
			r.inflightBegin()
		}
		*r.state = packedRecordState(r.first, r.published, uint16(n))
		for i, at := 0, r.first; i < n; i++ {
			e := r.element(r.published + uint16(i))
			if n-i <= written {
				*(*uint64)(unsafe.Add(r.packedDesc(at), 8)) = usedElement(e, at)
			}
			at = r.advance(at, uint32(e>>16&0xffff))
		}
		return n
	}
	return 0
}

// Unbudgeted removes a session's message budget.
func (s *Session) Unbudgeted() { s.budget.SetLimit(rate.Inf) }

// ExpectFirst replaces firstMessageTimeout, before Run accepts a connection.
func (s *Session) ExpectFirst(within time.Duration) { s.first = within }

// Exhaust sets a session's message budget, which no longer grows.
func (s *Session) Exhaust(messages int) {
	s.budget.SetLimit(1e-6)
	s.budget.SetBurst(messages)
}
