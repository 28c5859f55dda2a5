// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Foreign is an eventfd that Weft signals and a process outside of Weft also holds: a
// front end's call or err descriptor. A plain write to it can block. O_NONBLOCK
// belongs to the file description, so the front end can clear it at any time, and the
// front end can fill the counter.
//
// Signal does not write. It submits a request that completes at once, with the
// eventfd as its result event (IOCB_FLAG_RESFD). The kernel's eventfd_signal stops
// counting at the counter's maximum, wakes all waiters, and never waits itself.
//
// Weft also waits for events of a front end (kicks). It watches them edge-triggered
// and never reads them: a read blocks on an empty counter, and wakes everyone who
// waits to write.
//
// The caller owns the descriptor. Methods of a nil Foreign do nothing. Several
// goroutines may call Signal at once.
type Foreign struct {
	fd      int
	via     *completions // nil if there is no context, see writeAnyway
	request request
	list    [1]*request // argument of io_submit
	slow    int         // number of signals in a row that took more than MaxSignalNS
}

// A signal wakes every waiter of the eventfd with interrupts disabled. Each waiter
// costs the signalling thread 30 to 100 ns. A front end can have millions of waiters:
// one poll call can wait as often as RLIMIT_NOFILE allows.
const (
	// MaxSignalNS is the largest acceptable CPU time of a signal in ns. With a few
	// waiters a signal takes 1 µs.
	MaxSignalNS = 250_000
	// SlowSignals is the number of consecutive signals over MaxSignalNS at which Slow
	// returns true. An interrupt can delay a single one.
	SlowSignals = 3
	// suspected is the number of signals that Suspect makes the process measure.
	suspected = 64
)

// suspicion is the number of signals of this process still to measure.
var suspicion atomic.Int32

// Suspect turns on the measurement of the process's next signals. A worker calls it
// after a pass that took long. Without it no signal reads a clock.
func Suspect() { suspicion.Store(suspected) }

// Slow reports whether the latest measured signals took so long that the event's
// owner must be detached.
func (e *Foreign) Slow() bool { return e != nil && e.slow >= SlowSignals }

// NewForeign makes a Foreign of fd. If fd is not an eventfd, the error says which
// kind of file it is.
func NewForeign(fd int) (*Foreign, error) {
	if err := CheckEvent(fd); err != nil {
		return nil, err
	}
	e := &Foreign{fd: fd}
	e.list[0] = &e.request
	e.Place(0)
	return e, nil
}

// CheckEvent returns an error if fd is not an eventfd.
func CheckEvent(fd int) error {
	what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("descriptor %d: %w", fd, err)
	}
	if what != "anon_inode:[eventfd]" { // the link of a real file begins with a slash
		return fmt.Errorf("the descriptor is %q, expected an eventfd", what)
	}
	return nil
}

// Place sets the worker that signals the event most, so that workers seldom share a
// context. Nobody uses the event during Place.
func (e *Foreign) Place(worker int) {
	if e == nil {
		return
	}
	c, null := contextOf(worker)
	e.via = c
	e.request = request{op: opPread, fd: uint32(null), flags: flagResultEvent, result: uint32(e.fd)}
}

// Signal makes the event readable and wakes its waiters.
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

// measured signals and returns the thread's CPU time for it in ns. Wall time would
// include a process that the signal wakes on this core.
func (e *Foreign) measured() int64 {
	before := threadNS()
	e.signal()
	return threadNS() - before
}

// Probe signals the event from a thread that is no worker's, and returns an error if
// the event has too many waiters.
func (e *Foreign) Probe() error {
	if e == nil {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if ns := e.measured(); ns > SlowSignals*MaxSignalNS {
		return fmt.Errorf("a signal of the eventfd takes %d µs of CPU time, at most %d are allowed: too many wait for it",
			ns/1000, SlowSignals*MaxSignalNS/1000)
	}
	return nil
}

// threadNS returns the CPU time of the calling thread in ns.
func threadNS() int64 {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

// writeAnyway signals the event by a write, without a context. It may block if the
// front end clears O_NONBLOCK between the two system calls. Prepare's error says how
// to avoid this.
func (e *Foreign) writeAnyway() {
	if unix.SetNonblock(e.fd, true) == nil {
		SignalOwn(e.fd)
	}
}
