// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math"
	"time"
)

// schedule determines when frames are due. Frame n+1 is due when the rate allows the
// bytes of the first n frames. A late sender catches up, so that the number of frames
// after any time is exact.
type schedule struct {
	bits  float64 // rate in bits a second; 0 means no limit
	count float64 // rate in frames a second; 0 means no limit
	sizes []int   // frame sizes of one round of the mix, in order

	frames uint64 // number of frames sent so far
	bytes  uint64 // number of bytes sent so far
	limit  uint64 // largest number of frames; 0 means no limit
}

func newSchedule(s *Spec) *schedule {
	return &schedule{bits: s.BitsPerSecond, count: s.PerSecond, sizes: s.Sizes.round(), limit: s.Count}
}

// next returns the size of the next frame.
func (s *schedule) next() int { return s.sizes[s.frames%uint64(len(s.sizes))] }

// due returns the time at which the next frame may be sent, counted from the start of
// the schedule.
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

// done reports whether the largest number of frames has been sent.
func (s *schedule) done() bool { return s.limit != 0 && s.frames >= s.limit }

// The method sent advances the schedule by one frame, which the caller has sent.
func (s *schedule) sent() {
	s.bytes += uint64(s.next())
	s.frames++
}

// restart starts the schedule again after the warm-up, with the first frame of a
// round. The number of measured frames then determines the number of measured bytes.
func (s *schedule) restart() { s.frames, s.bytes = 0, 0 }
