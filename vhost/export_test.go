// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"time"
	"unsafe"

	"golang.org/x/time/rate"
)

// TearPublish puts a packed ring into the state of a device that died while it published. The record
// has all used elements. The ring in guest memory has only the last ones; written is their number.
// TearPublish returns the number of used elements.
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

// ExpectFirst sets the time that a front end has for its first message. The test calls it before Run
// accepts a connection.
func (s *Session) ExpectFirst(within time.Duration) { s.first = within }

// Exhaust sets a session's message budget to this number of messages. The budget then does not grow
// any more.
func (s *Session) Exhaust(messages int) {
	s.budget.SetLimit(1e-6)
	s.budget.SetBurst(messages)
}

// ResumePosition is resumePosition.
var ResumePosition = resumePosition
