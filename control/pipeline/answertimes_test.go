// SPDX-License-Identifier: Apache-2.0

package pipeline

import "testing"

// A time counts in each bucket of AtMostS whose limit it does not exceed, and in the sum.
func TestAnswerTimes(t *testing.T) {
	var times answerTimes
	const now = 10e9
	times.add(now, []uint64{now, now - 20e3, now - 20e3 - 1, now - 3e9})
	got := times.read()
	for limit, want := range map[float64]uint64{20e-6: 2, 50e-6: 3, 2: 3} {
		if got.AtMostS[limit] != want {
			t.Errorf("%d answers within %v s, want %d", got.AtMostS[limit], limit, want)
		}
	}
	if got.Count != 4 || got.SumS < 3 || got.SumS > 3.001 || len(got.AtMostS) != len(answerLimitsNS) {
		t.Errorf("%+v", got)
	}
}
