// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math"
	"time"
)

// A schedule says when frames are due: frame n+1 is due when the rate allows n
// frames. A late sender catches up, so that the number of frames after a time is
// exact.
type schedule struct {
	bits  float64 // bits a second; 0: no limit in bits
	count float64 // frames a second; 0: no limit in frames
	sizes []int   // sizes of one round, in order

	frames uint64 // frames sent
	bytes  uint64 // bytes sent
	limit  uint64 // greatest number of frames; 0: no limit
}

func newSchedule(s *Spec) *schedule {
	return &schedule{bits: s.BitsPerSecond, count: s.PerSecond, sizes: s.Sizes.round(), limit: s.Count}
}

// next returns the size of the next frame.
func (s *schedule) next() int { return s.sizes[s.frames%uint64(len(s.sizes))] }

// due returns the time at which the next frame may be sent, from the start.
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

// done reports whether the number of frames is reached.
func (s *schedule) done() bool { return s.limit != 0 && s.frames >= s.limit }

// sent counts the frame whose size next returned.
func (s *schedule) sent() {
	s.bytes += uint64(s.next())
	s.frames++
}

// restart starts again at 0 after the warm-up, at the beginning of a round: the bytes
// of the measurement then follow from its frames.
func (s *schedule) restart() { s.frames, s.bytes = 0, 0 }
