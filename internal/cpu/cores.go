// SPDX-License-Identifier: Apache-2.0

// Package cpu pins threads to cores, sets their scheduling, and helps threads that
// poll.
package cpu

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxCores is the number of cores in a unix.CPUSet. Core numbers are below it.
const maxCores = 1024

// ParseList parses a list of cores in the kernel's notation, such as "0,2-3", and keeps its order. A
// core that occurs twice is an error. An empty list gives nil.
func ParseList(list string) ([]int, error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	var cores []int
	for _, part := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		from, err := parseCore(first)
		if err != nil {
			return nil, err
		}
		to := from
		if isRange {
			if to, err = parseCore(last); err != nil {
				return nil, err
			}
		}
		if to < from {
			return nil, fmt.Errorf("cores %q: ends before it begins", part)
		}
		for c := from; c <= to; c++ {
			if slices.Contains(cores, c) {
				return nil, fmt.Errorf("cores %q: core %d twice", list, c)
			}
			cores = append(cores, c)
		}
	}
	return cores, nil
}

func parseCore(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n >= maxCores {
		return 0, fmt.Errorf("core %q: expected a number below %d", s, maxCores)
	}
	return int(n), nil
}

// Allowed returns the cores on which this process may run, in ascending order.
func Allowed() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("cores of this process: %w", err)
	}
	var cores []int
	for c := range maxCores {
		if set.IsSet(c) {
			cores = append(cores, c)
		}
	}
	return cores, nil
}

// Pin restricts the calling thread to one core. The calling goroutine must be locked
// to its thread.
func Pin(core int) error {
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to core %d: %w", core, err)
	}
	return nil
}

// Confine restricts all threads of this process, including later ones, to the allowed cores that are
// not in the list reserved. It does nothing if no core is left. Workers must be pinned to their cores
// afterwards.
func Confine(reserved []int) error {
	allowed, err := Allowed()
	if err != nil {
		return err
	}
	var set unix.CPUSet
	for _, c := range allowed {
		if !slices.Contains(reserved, c) {
			set.Set(c)
		}
	}
	if set.Count() == 0 {
		return nil
	}
	if err := eachThread(func(tid int) error { return unix.SchedSetaffinity(tid, &set) }); err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	return nil
}

func threads() ([]int, error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, fmt.Errorf("threads of this process: %w", err)
	}
	var tids []int
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids, nil
}
