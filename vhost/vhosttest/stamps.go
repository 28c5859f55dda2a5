package vhosttest

// stampWindow is how far back a frame is known to have come or not; one from
// before counts as come.
const stampWindow = 1 << 16

// stamps knows which of a sequence of frames have come.
type stamps struct {
	next uint64 // above all that have come
	came [stampWindow / 64]uint64
}

// note notes a frame's stamp. again: it has come before; late: one behind it has.
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
