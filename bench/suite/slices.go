// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"weft/bench"
)

// The functions below compare the frame rate of guests 0 and 1 without and with an attack by guest 2.
// The physical machine may move the two virtual cores closer together or further apart at any time,
// which changes the rate by half. The measurement therefore alternates between short slices of time
// without and with the attack, and compares only neighbouring slices.

const (
	// sliceTime is the length of a slice.
	sliceTime = 200 * time.Millisecond
	// settleTime is the time before each slice, which does not count. The rings may still be full of
	// attack frames from the slice before. If such frames are expensive, the switch takes them slowly.
	settleTime = 100 * time.Millisecond
	// attackLengths says how long all slices take together, as a multiple of the length of a
	// measurement.
	attackLengths = 8
)

// attackReport has the rates of all slices in order. The slices alternate, and the first one has no
// attack.
type attackReport struct {
	Rates  []float64 // frames per second that guests 0 and 1 received
	Attack []float64 // frames per second that guest 2 sent in each slice with an attack
}

// alternate measures slices and adds their rates to the report. It ends when done returns true after a
// slice with an attack. circulate runs the guests for the time d. It returns how many frames guests 0
// and 1 have received, and how many guest 2 has sent.
func (a *attackReport) alternate(done func() bool, circulate func(d time.Duration, attacked bool) (frames, sent float64, elapsed time.Duration)) {
	for attacked := false; ; attacked = !attacked {
		circulate(settleTime, attacked)
		frames, sent, elapsed := circulate(sliceTime, attacked)
		a.Rates = append(a.Rates, frames/elapsed.Seconds())
		if !attacked {
			continue
		}
		if a.Attack = append(a.Attack, sent/elapsed.Seconds()); done() {
			return
		}
	}
}

// aloneRate returns the median rate without an attack, and attackedRate the one with an attack.
func (a *attackReport) aloneRate() float64    { return bench.Sample(stride(a.Rates, 0)).Median() }
func (a *attackReport) attackedRate() float64 { return bench.Sample(stride(a.Rates, 1)).Median() }

// left returns the fraction of the frame rate that remains during an attack. It is the median over all
// pairs of neighbouring slices.
func (a *attackReport) left() float64 {
	var parts []float64
	for i := 1; i < len(a.Rates); i++ {
		alone, attacked := a.Rates[i-1], a.Rates[i]
		if i%2 == 0 {
			alone, attacked = attacked, alone
		}
		if alone > 0 {
			parts = append(parts, attacked/alone)
		}
	}
	return bench.Sample(parts).Median()
}

// stride returns every second element of list, beginning at the index from.
func stride(list []float64, from int) (out []float64) {
	for i := from; i < len(list); i += 2 {
		out = append(out, list[i])
	}
	return out
}

// noteAttack adds secondary results to the report: the frame rate without the attack as "alone", the
// frame rate with the attack under the name "attacked", and guest 2's rate under the name "taken".
func (r *run) noteAttack(a *attackReport, attacked, taken, unit string) {
	r.note("alone", "frames/s", a.aloneRate())
	r.note(attacked, "frames/s", a.attackedRate())
	r.note(taken, unit, bench.Sample(a.Attack).Median())
}
