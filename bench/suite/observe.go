// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weft/bench"
	"weft/bench/replica"
	"weft/e2e/lab"
)

// The functions below measure the CPU time and the system calls of a run's processes, with perf and
// /proc.

// processorTime returns the CPU time of a process, or 0 if it has ended.
func processorTime(pid int) replica.CPU {
	user, system := bench.CPUTime(pid)
	return replica.CPU{User: user.Seconds(), System: system.Seconds()}
}

func (c *cluster) components() map[string]int {
	list := c.daemons()
	for name, p := range c.members {
		list[name] = p.cmd.Process.Pid
	}
	return list
}

// countCalls counts system calls until its caller calls the returned function. That function notes the
// calls for each request, and the engines' calls for each received frame.
func (c *cluster) countCalls() func(int) {
	before := c.frames()
	counting := startCounting(c.run, c.components())
	return func(requests int) {
		counts := counting.end()
		after := c.frames()
		for name, calls := range counts {
			c.note("calls a request, "+name, "", float64(calls[allCalls])/float64(requests))
		}
		if frames := after - before; frames > 0 {
			c.noteCalls("engines' ", counts["engines"], frames)
		}
	}
}

// noteCalls notes the system calls for each frame: their sum, and the kinds that are frequent enough.
func (r *run) noteCalls(whose string, calls map[string]uint64, frames uint64) {
	for kind, n := range calls {
		if each := float64(n) / float64(frames); kind == allCalls || each >= leastCalls {
			r.note(whose+kind+" a frame", "", each)
		}
	}
}

// leastCalls is a number of calls per frame. noteCalls leaves out kinds of system calls that are less
// frequent.
const leastCalls = 0.001

// allCalls is the name of the sum of all kinds of system calls.
const allCalls = "calls"

// callEvents returns the names of perf's trace points: one for all system calls, and one for each kind
// that a worker makes.
func callEvents() string {
	events := []string{"raw_syscalls:sys_enter"}
	for _, name := range []string{"sendto", "recvfrom", "read", "write", "writev", "readv", "epoll_wait", "epoll_pwait", "epoll_ctl", "sched_yield", "futex"} {
		if _, err := os.Stat("/sys/kernel/tracing/events/syscalls/sys_enter_" + name); err == nil {
			events = append(events, "syscalls:sys_enter_"+name)
		}
	}
	return strings.Join(events, ",")
}

// counting counts system calls until its method end is called. It runs one perf process for each
// process whose calls it counts.
type counting struct {
	perfs map[string]*exec.Cmd
	files map[string]string
}

func startCounting(r *run, components map[string]int) *counting {
	n := &counting{perfs: map[string]*exec.Cmd{}, files: map[string]string{}}
	for name, pid := range components {
		n.files[name] = filepath.Join(r.dir, "calls-"+strings.ReplaceAll(name, " ", "-"))
		cmd := exec.Command("perf", "stat", "-x,", "-e", callEvents(), "-p", fmt.Sprint(pid), "-o", n.files[name])
		if err := cmd.Start(); err != nil {
			lab.Check(fmt.Errorf("perf: %w", err))
		}
		n.perfs[name] = cmd
	}
	time.Sleep(perfStart)
	return n
}

// perfStart is how long perf takes to start.
const perfStart = 300 * time.Millisecond

func (n *counting) end() map[string]map[string]uint64 {
	counts := map[string]map[string]uint64{}
	for name, cmd := range n.perfs {
		_ = cmd.Process.Signal(syscall.SIGINT) // perf writes its file and ends
		_ = cmd.Wait()                         // always an error, because a signal has ended perf
		text := lab.Must(os.ReadFile(n.files[name]))
		if counts[component(name)] == nil {
			counts[component(name)] = map[string]uint64{}
		}
		if !addCalls(counts[component(name)], string(text)) {
			lab.Check(fmt.Errorf("perf counts %q of %s", text, name))
		}
	}
	return counts
}

// addCalls adds the counts in the output of perf stat to calls. It returns false if the output has no
// counts.
func addCalls(calls map[string]uint64, text string) (ok bool) {
	for line := range strings.Lines(text) {
		words := strings.Split(line, ",")
		if len(words) < 3 {
			continue
		}
		group, event, _ := strings.Cut(words[2], ":")
		n, err := strconv.ParseUint(words[0], 10, 64)
		switch {
		case err != nil:
			continue // the kernel does not have this system call
		case group == "raw_syscalls":
			event, ok = allCalls, true
		default:
			event = strings.TrimPrefix(event, "sys_enter_")
		}
		calls[event] += n
	}
	return ok
}

// sample takes a profile until its caller calls the returned function. For each component, that
// function notes the share of time in the kernel, and the share spent in entering and leaving system
// calls and in waiting.
func (c *cluster) sample() func(int) {
	data := filepath.Join(c.dir, "perf.data")
	cmd := exec.Command("perf", "record", "-q", "-a", "-e", "cpu-clock", "-F", "4999", "-o", data)
	if err := cmd.Start(); err != nil {
		lab.Check(fmt.Errorf("perf: %w", err))
	}
	names := map[int]string{}
	for name, pid := range c.components() {
		names[pid] = component(name)
	}
	time.Sleep(perfStart)
	return func(int) {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait() // always an error, because a signal has ended perf
		text := lab.Must(command(nil, "perf", "script", "-i", data, "-F", "pid,ip,sym"))
		for name, s := range bookSamples(text, names) {
			if all := s.sum(); all >= leastSamples {
				share := func(n int) float64 { return 100 * float64(n) / float64(all) }
				c.note("in the kernel, "+name, "%", share(s.entry+s.waiting+s.kernel))
				c.note("entering, leaving and waiting, "+name, "%", share(s.entry+s.waiting))
			}
		}
	}
}

// leastSamples is the number of samples that a component must have. Below it, sample notes no shares.
const leastSamples = 50

type samples struct{ user, entry, waiting, kernel int }

func (s *samples) sum() int { return s.user + s.entry + s.waiting + s.kernel }

// bookSamples reads the output of perf script and counts the samples of each component by kind.
func bookSamples(text string, names map[int]string) map[string]*samples {
	booked := map[string]*samples{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 3 {
			continue
		}
		pid, err := strconv.Atoi(words[0])
		name, ours := names[pid]
		if err != nil || !ours {
			continue
		}
		s := booked[name]
		if s == nil {
			s = &samples{}
			booked[name] = s
		}
		switch address, err := strconv.ParseUint(words[1], 16, 64); {
		case err != nil || address < 1<<63:
			s.user++
		case hasPrefix(words[2], entryFunctions):
			s.entry++
		case hasPrefix(words[2], waitingFunctions):
			s.waiting++
		default:
			s.kernel++
		}
	}
	return booked
}

func hasPrefix(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// Prefixes of names of kernel functions: first those that enter and leave system calls, then those
// that wait for events.
var (
	entryFunctions = []string{"entry_", "__entry_text", "syscall_", "do_syscall_64", "x64_sys_call", "__x64_sys_", "exit_to_user_mode",
		"__get_user_nocheck", "srso_", "asm_", "swapgs", "error_entry", "irqentry_"}
	waitingFunctions = []string{"ep_", "do_epoll", "epoll", "do_poll", "poll_", "do_sys_poll", "futex", "__futex", "do_futex", "select_estimate",
		"schedule", "__schedule", "ktime_get", "read_tsc", "hrtimer", "eventfd"}
)
