package watchdog

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// thread is what the kernel accounts to one thread, or to several in sum.
type thread struct {
	// state as in proc_pid_stat(5): R runs or waits for a core, D and S are blocked in
	// the kernel, t and T are stopped.
	state byte
	// runNS is the time spent on a core, waitNS the time spent runnable without one.
	// The present wait counts once it is over.
	runNS, waitNS uint64
}

// runnable tells whether the thread runs or waits for a core, so that nobody can say
// which from one look.
func (t thread) runnable() bool { return t.state == 'R' }

// readThread asks the kernel about a thread of a process.
func readThread(pid int, tid uint64) (thread, error) {
	dir := fmt.Sprintf("/proc/%d/task/%d/", pid, tid)
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return thread{}, err
	}
	// The name, in parentheses, may hold anything.
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 || end+2 >= len(stat) {
		return thread{}, fmt.Errorf("%sstat: %q", dir, stat)
	}
	t := thread{state: stat[end+2]}
	times, err := os.ReadFile(dir + "schedstat")
	if err != nil {
		return thread{}, err
	}
	if _, err := fmt.Sscan(string(times), &t.runNS, &t.waitNS); err != nil {
		return thread{}, fmt.Errorf("%sschedstat: %w", dir, err)
	}
	return t, nil
}

// readOthers sums up the threads of a process but for some, as the one thread that
// serves control: a goroutine has no thread of its own. The state is R if any of them
// is runnable, else S.
func readOthers(pid int, but func(tid uint64) bool) (thread, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return thread{}, err
	}
	sum := thread{state: 'S'}
	for _, e := range entries {
		tid, err := strconv.ParseUint(e.Name(), 10, 64)
		if err != nil || but(tid) {
			continue
		}
		t, err := readThread(pid, tid)
		if err != nil {
			continue // it has ended
		}
		sum.runNS += t.runNS
		sum.waitNS += t.waitNS
		if t.runnable() {
			sum.state = 'R'
		}
	}
	return sum, nil
}
