package main

import (
	"errors"
	"fmt"
	"math/bits"
	"path/filepath"
	"runtime"
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
	used := func() (seconds float64) {
		for _, pid := range pids {
			t := processorTime(pid)
			seconds += t.User + t.System
		}
		return seconds
	}
	before, from := used(), time.Now()
	time.Sleep(3 * r.length)
	return 100 * (used() - before) / time.Since(from).Seconds(), nil
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
	if err := passTime(r, changing, []string{"--socket", sw.socket, "add-flow", "priority=7,udp,tp_dst=53,actions=drop"},
		[]string{"--socket", sw.socket, "del-flows", "udp,tp_dst=53"}); err != nil {
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

// passTime lets the time of a measurement go by, doing nothing or one of the
// client's verbs after the other. They run beside the guests: what asks is not to
// take the worker's core.
func passTime(r *run, changing bool, verbs ...[]string) error {
	length := 3 * r.length
	if !changing {
		time.Sleep(length)
		return nil
	}
	changes, from := 0, time.Now()
	for time.Since(from) < length {
		verb := verbs[changes%len(verbs)]
		if _, err := command(nil, "taskset", append([]string{"-c", fmt.Sprint(guestCore), filepath.Join(r.bin, "weft")}, verb...)...); err != nil {
			return err
		}
		changes++
	}
	r.note("client verbs run", "verbs/s", float64(changes)/time.Since(from).Seconds())
	return nil
}

func noteGaps(r *run, gaps []uint64, seconds float64) (longest float64, err error) {
	for i, count := range gaps {
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
// its core is kept from it. The verb that is run then asks nobody.
func measureMachine(r *run, changing bool) (float64, error) {
	var stop atomic.Bool
	gaps := make([]uint64, 64)
	done := make(chan error, 2)
	for _, core := range []int{switchCore, guestCore} {
		go func() {
			runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
			if err := cpu.Pin(core); err != nil {
				done <- err
				return
			}
			for last := time.Now(); !stop.Load(); {
				now := time.Now()
				if core == switchCore {
					gaps[bits.Len64(uint64(now.Sub(last)))]++
				}
				last = now
			}
			done <- nil
		}()
	}
	from := time.Now()
	err := passTime(r, changing, []string{"version"})
	seconds := time.Since(from).Seconds()
	stop.Store(true)
	if err = errors.Join(err, <-done, <-done); err != nil {
		return 0, err
	}
	return noteGaps(r, gaps, seconds)
}
