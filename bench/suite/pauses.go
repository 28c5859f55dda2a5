// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"weft/datapath"
	"weft/internal/cpu"
)

// Experiments that measure the pauses of a busy worker.

func pausesFamily() []*experiment {
	var list []*experiment
	for _, changing := range []bool{false, true} {
		name := "pauses/frames circulating"
		if changing {
			name += ", flows changing"
		}
		list = append(list, &experiment{name: name, unit: "s", less: true, peers: []string{weftPeer, machinePeer},
			do: func(r *run, peer string) (float64, error) {
				if peer == machinePeer {
					return measureMachine(r, changing)
				}
				return measurePauses(r, changing)
			}})
	}
	return list
}

// machinePeer is the bare machine without a switch: a loop that only reads the clock
// on the worker's core, and a second such loop on the guests' core.
const machinePeer = "bare loop"

// measurePauses returns the longest time between two polls of a worker that forwards
// frames, rounded up to the limit of its histogram bucket. It records the histogram,
// in polls a second. The times include the pauses that the machine itself causes.
func measurePauses(r *run, changing bool) (float64, error) {
	sw := new(weft)
	if err := r.upCirculating(sw); err != nil {
		return 0, err
	}
	before, err := sw.show()
	if err != nil {
		return 0, err
	}
	from := time.Now()
	if err := passTime(r, sw, pausesTime(r), changing); err != nil {
		return 0, err
	}
	seconds := time.Since(from).Seconds()
	after, err := sw.show()
	if err != nil {
		return 0, err
	}
	gaps := after.Workers[0].PassGaps
	for i := range min(len(gaps), len(before.Workers[0].PassGaps)) {
		gaps[i] -= before.Workers[0].PassGaps[i]
	}
	return noteGaps(r, gaps, seconds)
}

// pausesTime returns how long an experiment measures pauses.
func pausesTime(r *run) time.Duration { return 3 * r.length }

// passTime waits for the given time. If changing is set, it adds flows to the switch
// during this time.
func passTime(r *run, sw *weft, length time.Duration, changing bool) error {
	if changing {
		return changeFlows(r, sw, length)
	}
	time.Sleep(length)
	return nil
}

// rare is the fraction of the longest times between polls that the secondary result
// "99.99 % below" leaves out.
const rare = 1e-4

// pauseBar is the limit of the last histogram bucket below 50 µs. For longer pauses,
// the report compares their number a second, because a bare loop runs many more
// rounds than a worker.
const pauseBar = 49152 * time.Nanosecond

func noteGaps(r *run, gaps []uint64, seconds float64) (longest float64, err error) {
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
		return 0, errors.New("no passes were counted")
	}
	return longest, nil
}

// measureMachine returns the longest pause of a bare loop on the worker's core, while
// another loop keeps the guests' core busy. If changing is set, it adds flows to a
// switch without traffic meanwhile.
func measureMachine(r *run, changing bool) (float64, error) {
	sw := new(weft)
	if changing {
		if err := sw.up(r, setup{flows: func(func(int) string, string) []string { return nil }}); err != nil {
			return 0, err
		}
	}
	length := pausesTime(r)
	p, err := startAs(r, "loops", loopVerb, length)
	if err != nil {
		return 0, err
	}
	if err := passTime(r, sw, length, changing); err != nil {
		return 0, err
	}
	var gaps []uint64
	if err := p.reports(length+20*time.Second, &gaps); err != nil {
		return 0, err
	}
	return noteGaps(r, gaps, length.Seconds())
}

// loopVerb is the argument that makes this program run as the two bare loops. They
// have a process of their own, so that no other goroutine can interrupt them.
const loopVerb = "bare-loops"

func runLoops(args []string) error {
	var length time.Duration
	if err := json.Unmarshal([]byte(args[0]), &length); err != nil {
		return err
	}
	runtime.GOMAXPROCS(3) // Go threads for the two loops and for the goroutine that waits for them
	gaps, others := make([]uint64, datapath.GapBuckets), make([]uint64, datapath.GapBuckets)
	errs := make(chan error, 2)
	go func() { errs <- loop(switchCore, length, gaps) }()
	go func() { errs <- loop(guestCore, length, others) }()
	if err := errors.Join(<-errs, <-errs); err != nil {
		return err
	}
	return sayReport(gaps)
}

// loop reads the clock on a core for the given time, and counts the times between two
// readings in a histogram.
func loop(core int, length time.Duration, gaps []uint64) error {
	runtime.LockOSThread() // without UnlockOSThread, the thread ends with its goroutine
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
