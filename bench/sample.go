// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"slices"
)

// Sample has the results of one switch's runs, in order.
type Sample []float64

// Median returns the median, or 0 if there are no runs.
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

// Min and Max return the smallest and the largest result, or 0 if there are no runs.
func (s Sample) Min() float64 { return extreme(s, slices.MinFunc) }
func (s Sample) Max() float64 { return extreme(s, slices.MaxFunc) }

func extreme(s Sample, pick func([]float64, func(a, b float64) int) float64) float64 {
	if len(s) == 0 {
		return 0
	}
	return pick(s, cmp.Compare[float64])
}

// Ratio divides the results of s by the results of reference, run by run, so that slow
// changes of the machine's speed cancel out.
func (s Sample) Ratio(reference Sample) Sample {
	n := min(len(s), len(reference))
	r := make(Sample, 0, n)
	for i := range n {
		if reference[i] != 0 {
			r = append(r, s[i]/reference[i])
		}
	}
	return r
}
