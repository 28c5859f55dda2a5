// SPDX-License-Identifier: Apache-2.0

package vhosttest

// stampWindow is the number of remembered stamps. Older ones count as received.
const stampWindow = 1 << 16

// stamps remembers which frames of a sequence the guest has received.
type stamps struct {
	next uint64 // one above the largest received stamp
	came [stampWindow / 64]uint64
}

// note records the stamp of a received frame. It reports whether an earlier frame had
// the same stamp (again), and whether a later frame has overtaken this one (late).
func (s *stamps) note(stamp uint64) (again, late bool) {
	if stamp >= s.next {
		for from := max(s.next, stamp-min(stamp, stampWindow-1)); from < stamp; from++ {
			s.came[from/64%uint64(len(s.came))] &^= 1 << (from % 64)
		}
		s.next = stamp + 1
	} else if s.next-stamp > stampWindow {
		return true, false
	} else {
		late = true
	}
	word, bit := &s.came[stamp/64%uint64(len(s.came))], uint64(1)<<(stamp%64)
	again = late && *word&bit != 0
	*word |= bit
	return again, late && !again
}
