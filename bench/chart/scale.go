// SPDX-License-Identifier: Apache-2.0

package chart

import "math"

// scale maps values to pixels on a linear or logarithmic axis.
type scale struct {
	low, high float64 // range of values
	from, to  float64 // range of pixels
	log       bool
	ticks     []float64
}

// newScale returns a scale from value low to value high, and from pixel from to pixel
// to. It has ticks at round values. A linear scale starts at 0, a logarithmic scale at
// the power of ten at or below low.
func newScale(low, high, from, to float64, log bool) scale {
	s := scale{from: from, to: to, log: log}
	if log {
		s.low, s.high = math.Pow(10, math.Floor(math.Log10(low)+1e-9)), math.Pow(10, math.Ceil(math.Log10(high)-1e-9))
		if s.low == s.high {
			s.high *= 10
		}
		steps := []float64{1}
		if s.high/s.low <= 1e3 {
			steps = []float64{1, 2, 5}
		}
		for decade := s.low; decade < s.high*1.001; decade *= 10 {
			for _, step := range steps {
				if tick := decade * step; tick <= s.high*1.001 {
					s.ticks = append(s.ticks, tick)
				}
			}
		}
		return s
	}
	if high <= 0 {
		high = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(high/4)))
	for _, by := range []float64{1, 2, 5, 10} {
		if high/(step*by) <= 6 {
			step *= by
			break
		}
	}
	s.high = math.Ceil(high/step-1e-9) * step
	for i := 0; float64(i)*step <= s.high*1.001; i++ {
		s.ticks = append(s.ticks, float64(i)*step)
	}
	return s
}

func (s scale) position(v float64) float64 {
	if s.log {
		v = math.Max(v, s.low)
		return s.from + (s.to-s.from)*math.Log(v/s.low)/math.Log(s.high/s.low)
	}
	return s.from + (s.to-s.from)*(v-s.low)/(s.high-s.low)
}

func tick(v float64) string {
	if v >= 1e6 {
		return Number(v/1e6) + " M"
	}
	return Number(v)
}
