// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Foreign is an eventfd of a front end that Weft signals. A plain write could block,
// because the front end can fill the counter and clear O_NONBLOCK at any time.
//
// Signal therefore submits an asynchronous request that completes at once, with the
// eventfd as its result event (IOCB_FLAG_RESFD). The kernel's eventfd_signal stops
// counting at the counter's maximum, wakes all waiters and never blocks.
//
// Weft also waits for kicks, the events of a front end. It watches the kick
// descriptors edge-triggered and never reads them: a read may block, and wakes all
// threads that wait to write.
//
// The caller owns the file descriptor. Methods of a nil Foreign do nothing. Several
// goroutines may call Signal at the same time.
type Foreign struct {
	fd      int
	via     *completions // context for signals; nil: signals are writes, see writeAnyway
	request request
	list    [1]*request // argument of io_submit
	slow    int         // number of consecutive signals that took longer than MaxSignalNS
}

// Limits of the time that a signal may take. Each waiter of the eventfd costs the
// signalling thread 30 to 100 ns, and a front end can add millions of waiters.
const (
	// MaxSignalNS is the largest acceptable CPU time of a signal in nanoseconds. A
	// signal with few waiters takes 1 µs.
	MaxSignalNS = 250_000
	// SlowSignals is the number of consecutive signals above MaxSignalNS after which
	// Slow returns true. A single one may be due to an interrupt.
	SlowSignals = 3
	// suspected is the number of signals whose time is measured after a call of
	// Suspect.
	suspected = 64
)

// suspicion is the number of signals of this process whose time must still be measured.
var suspicion atomic.Int32

// Suspect makes this process measure the time of the next signals. A worker calls it after a turn of its
// loop that took unusually long.
func Suspect() { suspicion.Store(suspected) }

// Slow reports whether the last SlowSignals measured signals took too long, so that the front end must
// be detached.
func (e *Foreign) Slow() bool { return e != nil && e.slow >= SlowSignals }

// NewForeign returns a Foreign for the file descriptor fd. CheckEvent must have
// accepted fd, in this process or in the process that has sent it.
func NewForeign(fd int) *Foreign {
	e := &Foreign{fd: fd}
	e.list[0] = &e.request
	e.Place(0)
	return e
}

// CheckEvent returns an error if the file descriptor fd is not an eventfd. The error
// names the kind of file. CheckEvent reads /proc.
func CheckEvent(fd int) error {
	what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("descriptor %d: %w", fd, err)
	}
	if what != "anon_inode:[eventfd]" { // the link in /proc of a regular file is a path
		return fmt.Errorf("the descriptor is %q, expected an eventfd", what)
	}
	return nil
}

// Place chooses the asynchronous I/O context that Signal uses: that of the worker that usually calls
// Signal. No other goroutine may use the Foreign during the call.
func (e *Foreign) Place(worker int) {
	if e == nil {
		return
	}
	c, null := contextOf(worker)
	e.via = c
	e.request = request{op: opPread, fd: uint32(null), flags: flagResultEvent, result: uint32(e.fd)}
}

// Signal makes the eventfd readable and wakes its waiters. It never blocks.
func (e *Foreign) Signal() {
	if e == nil {
		return
	}
	if suspicion.Load() <= 0 {
		e.signal()
		return
	}
	suspicion.Add(-1)
	if e.measured() > MaxSignalNS {
		e.slow++
	} else {
		e.slow = 0
	}
}

func (e *Foreign) signal() {
	if e.via == nil || !e.via.submit(&e.list) {
		e.writeAnyway()
	}
}

// The method measured signals the eventfd. It returns the CPU time in nanoseconds that the thread
// needed. Elapsed time would include the time of a process that the signal wakes up on this core.
func (e *Foreign) measured() int64 {
	before := threadNS()
	e.signal()
	return threadNS() - before
}

// Probe signals the eventfd until a signal takes at most SlowSignals*MaxSignalNS of CPU time. After
// SlowSignals slower ones, it returns an error: too many threads wait for the eventfd. Workers do not
// call Probe, because it may take milliseconds.
func (e *Foreign) Probe() error {
	if e == nil {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return probe(e.measured)
}

// probe calls the function signal up to SlowSignals times, until one call took at most
// SlowSignals*MaxSignalNS. signal returns the CPU time that it has needed, in ns.
func probe(signal func() int64) error {
	const limit = SlowSignals * MaxSignalNS
	least := int64(math.MaxInt64)
	for range SlowSignals {
		if least = min(least, signal()); least <= limit {
			return nil
		}
	}
	return fmt.Errorf("a signal of the eventfd takes %d µs of CPU time, at most %d are allowed: too many threads wait for it", least/1000, limit/1000)
}

// threadNS returns the CPU time of the calling thread in ns.
func threadNS() int64 {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

// writeAnyway signals the eventfd with write(2), because there is no asynchronous I/O context. It may
// block if the front end clears O_NONBLOCK meanwhile.
func (e *Foreign) writeAnyway() {
	if unix.SetNonblock(e.fd, true) == nil {
		SignalOwn(e.fd)
	}
}
