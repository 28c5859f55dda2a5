// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"weft/bench"
	"weft/e2e/lab"
)

// resident is a switch that can report its memory.
type resident interface {
	resident() memory
}

// memory is the memory of a switch in bytes. resident does not include huge pages.
type memory struct{ resident, huge float64 }

func (w *weft) resident() memory { return processMemory(w.daemon) }

func (o *ovs) resident() memory { return processMemory(o.vswitchd, o.db) }

func processMemory(processes ...*process) (m memory) {
	for _, p := range processes {
		for _, pid := range withChildren(p.cmd.Process.Pid) {
			status := bench.Status(pid)
			if status.VmRSS == 0 {
				lab.Check(fmt.Errorf("process %d has ended", pid))
			}
			m.resident += float64(status.VmRSS)
			m.huge += float64(status.HugetlbPages)
		}
	}
	return m
}

func withChildren(pid int) []int {
	all := []int{pid}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		text, _ := os.ReadFile(t)
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, withChildren(child)...)
			}
		}
	}
	return all
}
