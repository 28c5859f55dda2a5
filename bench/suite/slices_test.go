// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

// An attack leaves three quarters of the rate. The result is 0.75, although the machine becomes slower
// by half in the middle of the measurement.
func TestSlicesAcrossASlowerMachine(t *testing.T) {
	var a attackReport
	turns := 0
	a.alternate(func() bool { return turns >= 20 }, func(d time.Duration, attacked bool) (float64, float64, time.Duration) {
		if d == sliceTime {
			turns++
		}
		frames, sent := 100.0, 0.0
		if turns > 9 {
			frames = 50
		}
		if attacked {
			frames, sent = frames*3/4, 7
		}
		return frames, sent, time.Second
	})
	if left := a.left(); left != 0.75 {
		t.Errorf("%v of the rate left, want 0.75", left)
	}
	if len(a.Rates) != 20 || len(a.Attack) != 10 || a.Attack[9] != 7 {
		t.Errorf("rates %v, attack %v", a.Rates, a.Attack)
	}
}
