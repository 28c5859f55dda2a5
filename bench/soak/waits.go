// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// This file measures how long threads of the switch were runnable but had no core,
// which is the machine's share of a pause. The kernel counts this time in schedstat
// (Documentation/scheduler/sched-stats.rst).

// waits returns, for each thread of a process, the total time for which the thread
// was runnable but had no core.
func waits(pid int) map[int]time.Duration {
	all := map[int]time.Duration{}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range tasks {
		text, err := os.ReadFile(file)
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 2 {
			continue // the thread has ended
		}
		tid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		ns, _ := strconv.ParseInt(fields[1], 10, 64)
		all[tid] = time.Duration(ns)
	}
	return all
}

// workerWait returns how long the worker was runnable but had no core. The worker is
// the thread that is pinned to the core.
func workerWait(pid, core int) time.Duration {
	longest := time.Duration(0)
	for tid, d := range waits(pid) {
		var set unix.CPUSet
		if unix.SchedGetaffinity(tid, &set) == nil && set.Count() == 1 && set.IsSet(core) {
			longest = max(longest, d)
		}
	}
	return longest
}

// longestWait returns the longest time for which one thread was runnable but had no
// core between two results of waits.
func longestWait(before, after map[int]time.Duration) time.Duration {
	longest := time.Duration(0)
	for tid, d := range after {
		longest = max(longest, d-before[tid])
	}
	return longest
}
