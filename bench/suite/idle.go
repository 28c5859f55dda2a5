// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/prometheus/procfs"
)

// The functions below measure the CPU time of a switch without traffic.

func idleFamily() []*experiment {
	return []*experiment{{name: "idle/two guests connected", unit: "% of a core", smallerIsBetter: true, peers: []string{weftPeer, ovsPeer, testpmdPeer}, measure: measureIdle}}
}

// measureIdle returns the CPU time of an idle switch, in percent of a core.
func measureIdle(r *run, peer string) float64 {
	sw := newSwitch(peer)
	r.upWithGuests(sw, setup{flows: pairFlows}, "io", 64)
	var pids []int
	switch sw := sw.(type) {
	case *weft:
		s := sw.show()
		pids = []int{s.PID, s.EnginePID}
	case *ovs:
		pids = []int{sw.vswitchd.cmd.Process.Pid}
	case *testpmdSwitch:
		pids = []int{sw.proc.cmd.Process.Pid}
	}
	time.Sleep(warmUp)
	before, from := ranFor(pids), time.Now()
	time.Sleep(idleTime(r))
	return 100 * (ranFor(pids) - before).Seconds() / time.Since(from).Seconds()
}

func idleTime(r *run) time.Duration { return 10 * r.length }

// ranFor returns the CPU time of processes, from schedstat in nanoseconds. Clock ticks would be too
// coarse.
func ranFor(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		threads, _ := procfs.AllThreads(pid) // no threads after the process has ended
		for _, t := range threads {
			stat, _ := t.Schedstat()
			sum += time.Duration(stat.RunningNanoseconds)
		}
	}
	return sum
}
