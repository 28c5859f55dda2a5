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

// This file reads how long threads wait for a core. The kernel counts this time in
// schedstat (Documentation/scheduler/sched-stats.rst). A pause of
// traffic that is such a wait is not Weft's.

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

// workerWait returns how long the worker has waited for its core.
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

// longestWait returns how long one thread has waited for a core at most. old and new
// are two results of the function waits.
func longestWait(old, new map[int]time.Duration) time.Duration {
	longest := time.Duration(0)
	for tid, d := range new {
		longest = max(longest, d-old[tid])
	}
	return longest
}
