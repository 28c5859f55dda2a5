// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math"
	"time"
)

// schedule says when the frames of a stream are due. A late sender catches up, so the number of frames
// is exact.
type schedule struct {
	bits  float64 // bits per second; 0: no limit
	count float64 // frames per second; 0: no limit
	sizes []int   // frame sizes of one round of the mix, in order

	frames uint64 // number of frames sent so far
	bytes  uint64 // number of bytes sent so far
	limit  uint64 // largest number of frames; 0: no limit
}

func newSchedule(s *Spec) *schedule {
	return &schedule{bits: s.BitsPerSecond, count: s.PerSecond, sizes: s.Sizes.round(), limit: s.Count}
}

func (s *schedule) next() int { return s.sizes[s.frames%uint64(len(s.sizes))] }

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

func (s *schedule) finished() bool { return s.limit != 0 && s.frames >= s.limit }

func (s *schedule) sent() {
	s.bytes += uint64(s.next())
	s.frames++
}

// restart begins the measurement after the warm-up, with a new round of sizes.
func (s *schedule) restart() { s.frames, s.bytes = 0, 0 }
