package traffic

import (
	"math"
	"time"
)

// A schedule says how much may have been sent by when: frame n+1 is due at the
// moment at which the rate has allowed the n before it. What is late is made up
// for, so that the number after a time is exact whatever the sender was kept from.
type schedule struct {
	bits  float64 // a second; 0: no limit in bits
	count float64 // frames a second; 0: no limit in frames
	sizes []int   // one round, in order

	frames uint64 // sent
	bytes  uint64 // sent
	limit  uint64 // of frames; 0: none
}

func newSchedule(s *Spec) *schedule {
	return &schedule{bits: s.BitsPerSecond, count: s.PerSecond, sizes: s.Sizes.round(), limit: s.Count}
}

// next is the size of the next frame.
func (s *schedule) next() int { return s.sizes[s.frames%uint64(len(s.sizes))] }

// due is when the next frame may be sent, counted from the start.
func (s *schedule) due() time.Duration {
	var at float64
	switch {
	case s.bits > 0:
		at = float64(s.bytes) * 8 / s.bits
	case s.count > 0:
		at = float64(s.frames) / s.count
	}
	return time.Duration(math.Ceil(at * 1e9))
}

// done tells whether the number of frames is reached.
func (s *schedule) done() bool { return s.limit != 0 && s.frames >= s.limit }

// sent notes that the frame that next told the size of was sent.
func (s *schedule) sent() {
	s.bytes += uint64(s.next())
	s.frames++
}

// restart begins again at 0, after the warm-up, with the round where it is not:
// the measurement's bytes follow from its frames alone.
func (s *schedule) restart() { s.frames, s.bytes = 0, 0 }
