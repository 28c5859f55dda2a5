// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weft/internal/procstat"
)

// thread has the kernel's accounting of one thread, or the sum of several threads.
type thread struct {
	// state is the state in proc_pid_stat(5): R runs or waits for a core, D and S are
	// blocked in the kernel, t and T are stopped.
	state byte
	// ending is true once the thread exits, because it was killed or its process exits.
	ending bool
	// runNS is the time in which the thread ran on a core. waitNS is the time in which it waited for
	// one. The kernel adds a wait to waitNS when the wait ends.
	runNS, waitNS uint64
}

// runnable reports whether the thread runs or waits for a core.
func (t thread) runnable() bool { return t.state == 'R' }

func readThread(pid int, tid uint64) (thread, error) {
	dir := fmt.Sprintf("/proc/%d/task/%d/", pid, tid)
	stat, err := readProc(dir + "stat")
	if err != nil {
		return thread{}, err
	}
	parsed, err := procstat.Parse(stat)
	if err != nil {
		return thread{}, fmt.Errorf("%sstat: %w", dir, err)
	}
	t := thread{state: parsed.State, ending: parsed.Ending}
	times, err := readProc(dir + "schedstat")
	if err != nil {
		return thread{}, err
	}
	if t.runNS, t.waitNS, err = parseSchedstat(times); err != nil {
		return thread{}, fmt.Errorf("%sschedstat: %w", dir, err)
	}
	return t, nil
}

// parseSchedstat returns the first two fields of /proc/PID/task/TID/schedstat: the time
// on a core and the time of waiting for a core, in nanoseconds.
func parseSchedstat(text []byte) (runNS, waitNS uint64, err error) {
	run, rest, _ := strings.Cut(string(text), " ")
	wait, _, _ := strings.Cut(rest, " ")
	if runNS, err = strconv.ParseUint(run, 10, 64); err == nil {
		waitNS, err = strconv.ParseUint(wait, 10, 64)
	}
	return runNS, waitNS, err
}

// procSize is the size of readProc's buffer. It exceeds the size of the files of /proc
// that readProc reads, so that one read returns a whole file.
const procSize = 4096

// readProc reads a small file of /proc with three system calls. os.ReadFile makes
// eleven, which doubled the processor time of an idle switch.
func readProc(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	buf := make([]byte, procSize)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, &os.PathError{Op: "read", Path: path, Err: err}
	}
	return buf[:n], nil
}

// readOthers returns the sum of the accounting of a process's threads. It leaves out threads for which
// skip returns true. The state of the sum is R if any thread is runnable, T if all are stopped, else
// S. The sum is ending if all threads are. It serves the engine's server, whose goroutines have no
// threads of their own.
func readOthers(pid int, skip func(tid uint64) bool) (thread, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return thread{}, err
	}
	sum, alive, stopped := thread{state: 'S'}, false, true
	for _, e := range entries {
		tid, err := strconv.ParseUint(e.Name(), 10, 64)
		if err != nil || skip(tid) {
			continue
		}
		t, err := readThread(pid, tid)
		if err != nil {
			continue // the thread has ended
		}
		alive = alive || !t.ending
		stopped = stopped && (t.state == 'T' || t.state == 't')
		sum.runNS += t.runNS
		sum.waitNS += t.waitNS
		if t.runnable() {
			sum.state = 'R'
		}
	}
	if alive && stopped {
		sum.state = 'T'
	}
	sum.ending = !alive
	return sum, nil
}
