// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The CPU time of a switch without traffic.

func idleFamily() []*experiment {
	return []*experiment{{name: "idle/two guests connected", unit: "% of a core", less: true, peers: []string{weftPeer, ovsPeer, testpmdPeer}, do: measureIdle}}
}

// measureIdle returns the CPU time of a switch's processes, in percent of a core,
// while its guests send nothing.
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

// idleTime returns the length of the measurement of an idle switch.
func idleTime(r *run) time.Duration { return 10 * r.length }

// ranFor returns the total CPU time of the processes' threads from schedstat, to the
// nanosecond. The function processorTime is too coarse here: it counts in clock
// ticks, and an idle switch runs for less than a tick in a second.
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
