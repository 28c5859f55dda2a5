package main

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"weft/internal/cpu"
)

// What a switch does while there is nothing to do, and what keeps its worker from
// its work while there is much.

func calmFamilies() []*experiment {
	list := []*experiment{{name: "idle/two guests connected", unit: "% of a core", less: true, peers: []string{weftPeer, ovsPeer, testpmdPeer}, do: measureIdle}}
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

// measureIdle is the processor time that a switch's processes take while its
// guests send nothing.
func measureIdle(r *run, peer string) (float64, error) {
	sw := newSwitch(peer)
	if _, err := r.upWithGuests(sw, setup{flows: pairFlows}, "io", 64); err != nil {
		return 0, err
	}
	var pids []int
	switch sw := sw.(type) {
	case *weft:
		s, err := sw.show()
		if err != nil {
			return 0, err
		}
		pids = []int{s.PID, s.EnginePID}
	case *ovs:
		pids = []int{sw.vswitchd.cmd.Process.Pid}
	case *testpmdSwitch:
		pids = []int{sw.proc.cmd.Process.Pid}
	}
	time.Sleep(warmUp)
	before, from := ranFor(pids), time.Now()
	time.Sleep(idleTime(r))
	return 100 * (ranFor(pids) - before).Seconds() / time.Since(from).Seconds(), nil
}

// idleTime is how long nothing is looked at.
func idleTime(r *run) time.Duration { return 10 * r.length }

// ranFor is how long the threads that processes have now ran, to the nanosecond
// (schedstat): the clock tick that processorTime goes by is longer than what an idle
// switch does in a second.
func ranFor(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, file := range threads {
			text, err := os.ReadFile(file)
			ran, _, _ := strings.Cut(string(text), " ")
			ns, _ := strconv.ParseInt(ran, 10, 64)
			if err == nil {
				sum += time.Duration(ns)
			}
		}
	}
	return sum
}

// machinePeer is the machine itself: a loop on the worker's core that only reads
// the clock, another on the guests'.
const machinePeer = "bare loop"

// measurePauses has frames circulate and returns the longest time between two
// passes of the worker, rounded up to a power of two nanoseconds; the histogram
// goes with it, as passes a second. The machine's own pauses are among them.
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
	if err := passTime(r, sw, changing); err != nil {
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

// passTime lets the time of a measurement go by, doing nothing or adding flows.
func passTime(r *run, sw *weft, changing bool) error {
	if changing {
		return changeFlows(r, sw, 3*r.length)
	}
	time.Sleep(3 * r.length)
	return nil
}

// rare is the share of the passes that the bar on pauses leaves out.
const rare = 1e-4

func noteGaps(r *run, gaps []uint64, seconds float64) (longest float64, err error) {
	all, short := uint64(0), uint64(0)
	for _, count := range gaps {
		all += count
	}
	for i, count := range gaps {
		if short += count; float64(all-short) >= rare*float64(all) {
			r.note("99.99 % below", "s", float64(uint64(2)<<i)/1e9)
		}
		if count > 0 {
			longest = float64(uint64(1)<<i) / 1e9
			r.note(fmt.Sprintf("gaps below %d ns", uint64(1)<<i), "passes/s", float64(count)/seconds)
		}
	}
	if longest == 0 {
		return 0, errors.New("no passes were counted")
	}
	return longest, nil
}

// measureMachine is the same without a switch: how long a thread that is alone on
// its core is kept from it, while another keeps the guests' core busy. The flows are
// added to a switch that has nothing to forward.
func measureMachine(r *run, changing bool) (float64, error) {
	sw := new(weft)
	if changing {
		if err := r.up(sw, setup{flows: func(func(int) string, string) []string { return nil }}); err != nil {
			return 0, err
		}
	}
	var stop atomic.Bool
	gaps := make([]uint64, 64)
	done := make(chan error, 2)
	for _, core := range []int{switchCore, guestCore} {
		go func() { done <- loop(core, &stop, gaps) }()
	}
	from := time.Now()
	err := passTime(r, sw, changing)
	seconds := time.Since(from).Seconds()
	stop.Store(true)
	if err = errors.Join(err, <-done, <-done); err != nil {
		return 0, err
	}
	return noteGaps(r, gaps, seconds)
}

// loop reads the clock on a core, and on the switch's counts the time since it read
// it last.
func loop(core int, stop *atomic.Bool, gaps []uint64) error {
	runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
	if err := cpu.Pin(core); err != nil {
		return err
	}
	for last := time.Now(); !stop.Load(); {
		now := time.Now()
		if core == switchCore {
			gaps[bits.Len64(uint64(now.Sub(last)))]++
		}
		last = now
	}
	return nil
}
