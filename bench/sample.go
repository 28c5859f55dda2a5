// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"slices"
)

// Sample has the results of alternating runs, in order.
type Sample []float64

// Median returns the median, 0 without runs.
func (s Sample) Median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// Min and Max return the spread, 0 without runs.
func (s Sample) Min() float64 { return extreme(s, slices.MinFunc) }
func (s Sample) Max() float64 { return extreme(s, slices.MaxFunc) }

func extreme(s Sample, pick func([]float64, func(a, b float64) int) float64) float64 {
	if len(s) == 0 {
		return 0
	}
	return pick(s, cmp.Compare[float64])
}

// Ratio returns s over other, run by run: a drift of the machine during both runs of
// a pair cancels out.
func (s Sample) Ratio(other Sample) Sample {
	n := min(len(s), len(other))
	r := make(Sample, 0, n)
	for i := range n {
		if other[i] != 0 {
			r = append(r, s[i]/other[i])
		}
	}
	return r
}
