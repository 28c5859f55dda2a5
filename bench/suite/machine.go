// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netns"

	"weft/bench"
)

func thisMachine() bench.Machine {
	m := bench.Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			m.CPU = strings.TrimSpace(value)
		case "cpu MHz":
			m.MHz = strings.TrimSpace(value)
		}
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = strings.TrimSpace(string(release))
	return m
}

func weftVersion() string {
	out, err := command(nil, "git", "describe", "--always", "--dirty")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(out)
}

// hugePages reserves huge pages for DPDK. The function that it returns restores the previous number.
func hugePages(pages int) (restore func(), err error) {
	const file = "/proc/sys/vm/nr_hugepages"
	before, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	mounted := false
	restore = func() {
		os.WriteFile(file, before, 0o644)
		if mounted {
			syscall.Unmount("/dev/hugepages", 0)
		}
	}
	if have, _ := strconv.Atoi(strings.TrimSpace(string(before))); have < pages {
		if err := os.WriteFile(file, []byte(strconv.Itoa(pages)), 0o644); err != nil {
			return nil, fmt.Errorf("reserve %d huge pages: %w", pages, err)
		}
	}
	if mounts, _ := os.ReadFile("/proc/mounts"); !strings.Contains(string(mounts), " /dev/hugepages ") {
		if err := os.MkdirAll("/dev/hugepages", 0o755); err != nil {
			return nil, err
		}
		if err := syscall.Mount("none", "/dev/hugepages", "hugetlbfs", 0, ""); err != nil {
			restore()
			return nil, fmt.Errorf("mount hugetlbfs: %w", err)
		}
		mounted = true
	}
	return restore, nil
}

// inNetns runs f on a thread that is in the network namespace ns.
func inNetns(ns netns.NsHandle, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread is never unlocked, so Go ends it with the goroutine
		if err := netns.Set(ns); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}
