package main

import (
	"fmt"
	"math"
	"time"
)

// progress tells how far the suite is. A turn is one peer's at one experiment.
type progress struct {
	rows, turns int // of all
	done        int // turns
	began       time.Time
}

// turnTime is what a turn takes by experience, until there is any.
const turnTime = 5 * time.Second

func newProgress(chosen []*experiment, runs int) *progress {
	p := &progress{rows: len(chosen), began: time.Now()}
	for _, e := range chosen {
		p.turns += runs * len(e.peers)
	}
	return p
}

// all says what is to come.
func (p *progress) all() string {
	return fmt.Sprintf("%d rows, %d turns, about %d minutes", p.rows, p.turns, int(math.Ceil(p.left(0).Minutes())))
}

// row says that row i begins.
func (p *progress) row(i int, name string) string {
	elapsed := time.Since(p.began)
	return fmt.Sprintf("row %d of %d: %s  (%s elapsed, about %s left)", i+1, p.rows, name, minutes(elapsed), minutes(p.left(elapsed)))
}

// left is what the turns to come take if they are like those before.
func (p *progress) left(elapsed time.Duration) time.Duration {
	each := turnTime
	if p.done > 0 {
		each = elapsed / time.Duration(p.done)
	}
	return each * time.Duration(p.turns-p.done)
}

func minutes(d time.Duration) string {
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}
