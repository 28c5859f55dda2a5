// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"weft/datapath"
	"weft/e2e/lab"
	"weft/internal/cpu"
)

func pausesFamily() []*experiment {
	var list []*experiment
	for _, changing := range []bool{false, true} {
		name := "pauses/frames circulating"
		if changing {
			name += ", flows changing"
		}
		list = append(list, &experiment{name: name, unit: "s", smallerIsBetter: true, peers: []string{weftPeer, machinePeer},
			measure: func(r *run, peer string) float64 {
				if peer == machinePeer {
					return measureMachine(r, changing)
				}
				return measurePauses(r, changing)
			}})
	}
	return list
}

// machinePeer is the machine without a switch: two loops only read the clock.
const machinePeer = "bare loop"

// measurePauses returns the longest time between two polls of a busy worker. The time is rounded up to
// the bound of its histogram bucket. It includes pauses that the machine causes.
func measurePauses(r *run, changing bool) float64 {
	sw := new(weft)
	r.upCirculating(sw)
	before := sw.show()
	from := time.Now()
	passTime(r, sw, pausesTime(r), changing)
	seconds := time.Since(from).Seconds()
	after := sw.show()
	gaps := after.Workers[0].PassGaps
	for i := range min(len(gaps), len(before.Workers[0].PassGaps)) {
		gaps[i] -= before.Workers[0].PassGaps[i]
	}
	return noteGaps(r, gaps, seconds)
}

func pausesTime(r *run) time.Duration { return 3 * r.length }

// passTime waits for the given time. If changing is set, it adds flows meanwhile.
func passTime(r *run, sw *weft, length time.Duration, changing bool) {
	if changing {
		changeFlows(r, sw, length)
	} else {
		time.Sleep(length)
	}
}

// rare is a fraction. The result "99.99 % below" is the time that only this fraction of the times
// exceeds.
const rare = 1e-4

// pauseBar is the gap above which the report counts gaps per second. A gap is the time between two
// polls of a worker, or between two readings of the clock in a bare loop. Counts of shorter gaps would
// not be comparable: a worker also handles frames between two polls, so it has fewer and longer gaps
// than a bare loop.
const pauseBar = 49152 * time.Nanosecond

func noteGaps(r *run, gaps []uint64, seconds float64) (longest float64) {
	all, short := uint64(0), uint64(0)
	for _, count := range gaps {
		all += count
	}
	told := false
	for i, count := range gaps {
		short += count
		limit := datapath.GapLimit(i)
		if limit == uint64(pauseBar) {
			r.note(fmt.Sprint("longer than ", pauseBar), "passes/s", float64(all-short)/seconds)
		}
		if !told && float64(all-short) < rare*float64(all) {
			told = true
			r.note("99.99 % below", "s", float64(limit)/1e9)
		}
		if count > 0 {
			longest = float64(limit) / 1e9
			r.note(fmt.Sprintf("gaps below %d ns", limit), "passes/s", float64(count)/seconds)
		}
	}
	if longest == 0 {
		lab.Check(errors.New("no passes were counted"))
	}
	return longest
}

// measureMachine returns the longest pause of a loop that only reads the clock, on the worker's core.
// If "changing" is set, it meanwhile adds flows to an idle switch.
func measureMachine(r *run, changing bool) float64 {
	sw := new(weft)
	if changing {
		sw.up(r, setup{flows: func(func(int) string, string) []string { return nil }})
	}
	length := pausesTime(r)
	p := startAs(r, "loops", "", loopVerb, length)
	passTime(r, sw, length, changing)
	var gaps []uint64
	p.waitForReport(length+20*time.Second, &gaps)
	return noteGaps(r, gaps, length.Seconds())
}

// loopVerb is the argument with which this program runs the two bare loops. They have a process of
// their own, where no other goroutines interrupt them.
const loopVerb = "bare-loops"

func runLoops(args []string) {
	var length time.Duration
	readTask(args, &length)
	runtime.GOMAXPROCS(3) // Go threads: two for the loops and one for the goroutine that waits
	gaps, others := make([]uint64, datapath.GapBuckets), make([]uint64, datapath.GapBuckets)
	errs := make(chan error, 2)
	go func() { errs <- loop(switchCore, length, gaps) }()
	go func() { errs <- loop(guestCore, length, others) }()
	lab.Check(errors.Join(<-errs, <-errs))
	sayReport(gaps)
}

func loop(core int, length time.Duration, gaps []uint64) error {
	runtime.LockOSThread() // the thread is never unlocked, so Go ends it with the goroutine
	if err := cpu.Pin(core); err != nil {
		return err
	}
	begin := time.Now()
	for last := begin; last.Sub(begin) < length; {
		now := time.Now()
		gaps[datapath.GapBucket(uint64(now.Sub(last)))]++
		last = now
	}
	return nil
}
