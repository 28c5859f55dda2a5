package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weft/bench/replica"
)

// What components of a run cost, by perf and /proc.

// processorTime is that of a process, all its threads; 0 once it is gone.
func processorTime(pid int) replica.CPU {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return replica.CPU{}
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have blanks
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return replica.CPU{}
	}
	const ticks = 100 // a second, in /proc (proc(5), USER_HZ)
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return replica.CPU{User: user / ticks, System: system / ticks}
}

// components are the processes that a run is made of.
func (c *cluster) components() map[string]int {
	list := c.daemons()
	for name, p := range c.members {
		list[name] = p.cmd.Process.Pid
	}
	return list
}

// countCalls counts the system calls of each kind of component for a request, and
// the engines' for a frame that they take in.
func (c *cluster) countCalls() (func(int) error, error) {
	before, err := c.frames()
	if err != nil {
		return nil, err
	}
	counting, err := startCounting(c.run, c.components())
	if err != nil {
		return nil, err
	}
	return func(requests int) error {
		counts, err := counting.end()
		if err != nil {
			return err
		}
		after, err := c.frames()
		if err != nil {
			return err
		}
		sums := map[string]uint64{}
		for name, n := range counts {
			sums[component(name)] += n
		}
		for name, n := range sums {
			c.note("calls a request, "+name, "", float64(n)/float64(requests))
		}
		if frames := after - before; frames > 0 {
			c.note("engines' calls a frame", "", float64(sums["engines"])/float64(frames))
		}
		return nil
	}, nil
}

// counting is a perf for each component.
type counting struct {
	perfs map[string]*exec.Cmd
	files map[string]string
}

func startCounting(r *run, components map[string]int) (*counting, error) {
	n := &counting{perfs: map[string]*exec.Cmd{}, files: map[string]string{}}
	for name, pid := range components {
		n.files[name] = filepath.Join(r.dir, "calls-"+strings.ReplaceAll(name, " ", "-"))
		cmd := exec.Command("perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", fmt.Sprint(pid), "-o", n.files[name])
		if err := cmd.Start(); err != nil {
			return n, fmt.Errorf("perf: %w", err)
		}
		n.perfs[name] = cmd
	}
	time.Sleep(perfStart)
	return n, nil
}

// perfStart is what perf takes until it counts.
const perfStart = 300 * time.Millisecond

// end returns the number of calls of each component.
func (n *counting) end() (map[string]uint64, error) {
	counts := map[string]uint64{}
	var errs error
	for name, cmd := range n.perfs {
		_ = cmd.Process.Signal(syscall.SIGINT) // one that is gone has written its file
		_ = cmd.Wait()                         // ends by the signal
		text, err := os.ReadFile(n.files[name])
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		for line := range strings.Lines(string(text)) {
			words := strings.Split(line, ",")
			if len(words) > 2 && strings.HasPrefix(words[2], "raw_syscalls") {
				counts[name], err = strconv.ParseUint(words[0], 10, 64)
			}
		}
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("perf counts %q of %s", text, name))
		}
	}
	return counts, errs
}

// sample has perf look often where the processors are, and books that to the
// components: user land, the way into and out of the kernel, waiting there
// (epoll, poll, futex), and the rest of the kernel.
func (c *cluster) sample() (func(int) error, error) {
	data := filepath.Join(c.dir, "perf.data")
	cmd := exec.Command("perf", "record", "-q", "-a", "-e", "cpu-clock", "-F", "4999", "-o", data)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("perf: %w", err)
	}
	names := map[int]string{}
	for name, pid := range c.components() {
		names[pid] = component(name)
	}
	time.Sleep(perfStart)
	return func(int) error {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait() // ends by the signal
		text, err := command(nil, "perf", "script", "-i", data, "-F", "pid,ip,sym")
		if err != nil {
			return err
		}
		for name, s := range bookSamples(text, names) {
			if all := s.all(); all >= leastSamples {
				share := func(n int) float64 { return 100 * float64(n) / float64(all) }
				c.note("in the kernel, "+name, "%", share(s.entry+s.waiting+s.kernel))
				c.note("entering, leaving and waiting, "+name, "%", share(s.entry+s.waiting))
			}
		}
		return nil
	}, nil
}

// leastSamples is from how many on shares are told.
const leastSamples = 50

// samples are those of one component.
type samples struct{ user, entry, waiting, kernel int }

func (s *samples) all() int { return s.user + s.entry + s.waiting + s.kernel }

// bookSamples reads perf script's lines: process, address, function.
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

// What the recording of three replicas names (a kernel of its time) and later ones:
// the assembly at both ends of a call and its first and last C functions, and what
// waits for something to happen.
var (
	entryFunctions = []string{"entry_", "__entry_text", "syscall_", "do_syscall_64", "x64_sys_call", "__x64_sys_", "exit_to_user_mode",
		"__get_user_nocheck", "srso_", "asm_", "swapgs", "error_entry", "irqentry_"}
	waitingFunctions = []string{"ep_", "do_epoll", "epoll", "do_poll", "poll_", "do_sys_poll", "futex", "__futex", "do_futex", "select_estimate",
		"schedule", "__schedule", "ktime_get", "read_tsc", "hrtimer", "eventfd"}
)
