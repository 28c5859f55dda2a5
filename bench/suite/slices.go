// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"weft/bench"
)

// This file compares the frame rate of guests 0 and 1 without and with an attack by
// guest 2. The host may move the two cores closer together or further apart at any time,
// which changes the rate by half. The guests therefore alternate between short slices
// without and with the attack, and only neighbouring slices are compared.

const (
	// sliceTime is the length of a slice.
	sliceTime = 200 * time.Millisecond
	// settleTime is the time before each slice that does not count. The switch still has
	// up to a ring of attack frames, and takes them slowly if they are expensive.
	settleTime = 100 * time.Millisecond
	// attackLengths is the time for all slices, in lengths of a measurement.
	attackLengths = 8
)

// attackReport has the rates of all slices of one kind, in order: without an attack, with
// one, and so on.
type attackReport struct {
	Rates  []float64 // frames per second that guests 0 and 1 received
	Attack []float64 // frames per second that guest 2 sent, of the slices with an attack
}

// alternate adds slices to the report until done returns true after a slice with an
// attack. circulate runs the guests for the time d; it returns the numbers of frames
// that guests 0 and 1 have received and that guest 2 has sent.
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

// aloneRate and attackedRate return the median rate without and with an attack.
func (a *attackReport) aloneRate() float64    { return bench.Sample(stride(a.Rates, 0)).Median() }
func (a *attackReport) attackedRate() float64 { return bench.Sample(stride(a.Rates, 1)).Median() }

// left returns the fraction of the rate that an attack leaves: the median over all pairs
// of neighbouring slices.
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

// stride returns every second element of list, from the given index on.
func stride(list []float64, from int) (out []float64) {
	for i := from; i < len(list); i += 2 {
		out = append(out, list[i])
	}
	return out
}

// noteAttack adds the rates of the report to the row.
func (r *run) noteAttack(a *attackReport, attacked, taken, unit string) {
	r.note("alone", "frames/s", a.aloneRate())
	r.note(attacked, "frames/s", a.attackedRate())
	r.note(taken, unit, bench.Sample(a.Attack).Median())
}
