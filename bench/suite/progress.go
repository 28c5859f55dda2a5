// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"time"
)

// progress estimates how long the suite still takes. A turn is one run of an experiment with one
// switch.
type progress struct {
	rows, turns int // number of experiments and number of turns in the whole suite
	finished    int // number of turns that have ended
	began       time.Time
}

// turnTime is the time that a run is expected to take before the first one has ended.
const turnTime = 5 * time.Second

func newProgress(chosen []*experiment, runs int) *progress {
	p := &progress{rows: len(chosen), began: time.Now()}
	for _, e := range chosen {
		p.turns += runs * len(e.peers)
	}
	return p
}

func (p *progress) size() string {
	return fmt.Sprintf("%d rows, %d turns, about %d minutes", p.rows, p.turns, int(math.Ceil(p.remaining(0).Minutes())))
}

func (p *progress) row(i int, name string) string {
	elapsed := time.Since(p.began)
	return fmt.Sprintf("row %d of %d: %s  (%s elapsed, about %s left)", i+1, p.rows, name, minutes(elapsed), minutes(p.remaining(elapsed)))
}

func (p *progress) remaining(elapsed time.Duration) time.Duration {
	each := turnTime
	if p.finished > 0 {
		each = elapsed / time.Duration(p.finished)
	}
	return each * time.Duration(p.turns-p.finished)
}

func minutes(d time.Duration) string {
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}
