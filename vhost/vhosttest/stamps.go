// SPDX-License-Identifier: Apache-2.0

package vhosttest

// stampWindow is the number of stamps (sequence numbers of frames) that a guest remembers. A frame
// with an older stamp counts as repeated.
const stampWindow = 1 << 16

// stamps remembers which frames of a sequence the guest has received.
type stamps struct {
	next     uint64                   // 1 more than the largest stamp received
	arrivals [stampWindow / 64]uint64 // bit s%stampWindow: the frame with stamp s has arrived
}

// note records the stamp of a received frame. repeated means that an earlier frame had
// the same stamp. overtaken means that a frame with a larger stamp has arrived before this one.
func (s *stamps) note(stamp uint64) (repeated, overtaken bool) {
	if stamp >= s.next {
		for from := max(s.next, stamp-min(stamp, stampWindow-1)); from < stamp; from++ {
			s.arrivals[from/64%uint64(len(s.arrivals))] &^= 1 << (from % 64)
		}
		s.next = stamp + 1
	} else if s.next-stamp > stampWindow {
		return true, false
	} else {
		overtaken = true
	}
	word, bit := &s.arrivals[stamp/64%uint64(len(s.arrivals))], uint64(1)<<(stamp%64)
	repeated = overtaken && *word&bit != 0
	*word |= bit
	return repeated, overtaken && !repeated
}
