package shm

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Foreign is an eventfd that a process outside of Weft has too, and that Weft signals: a
// front end's call or err descriptor. O_NONBLOCK belongs to the file description, so that
// the front end can clear it at any time. A front end that also fills the counter blocks
// a write.
//
// Signal depends on neither. It submits a request that completes at once, with the
// eventfd as its result event (IOCB_FLAG_RESFD). The kernel's eventfd_signal stops
// counting at the counter's maximum, wakes whoever waits, and never waits itself.
//
// A front end's event that Weft waits for, a kick, is watched for edges and never read: a
// read blocks on an empty counter, and wakes everyone who waits for room in it.
//
// The descriptor stays the caller's. Methods of nil do nothing. Several goroutines may
// call Signal at once.
type Foreign struct {
	fd      int
	via     *completions // nil: no context was to be had, see writeAnyway
	request request
	list    [1]*request // io_submit's argument
	slow    int         // signals in a row that took more than MaxSignalNS
}

// A signal wakes every waiter of the eventfd with interrupts disabled, and a front end
// can have millions of waiters: one poll waits as often as RLIMIT_NOFILE allows. Each
// costs the signalling thread 30 to 100 ns.
const (
	// MaxSignalNS is the CPU time that a signal may take. With a few waiters it takes
	// 1 µs.
	MaxSignalNS = 250_000
	// SlowSignals is the number of signals in a row beyond MaxSignalNS at which Slow
	// reports true. One can be an interrupt's fault.
	SlowSignals = 3
	// suspected is the number of signals measured after Suspect.
	suspected = 64
)

// suspicion is the number of signals of this process that are still to be measured.
var suspicion atomic.Int32

// Suspect has the next signals of the process measured. A worker calls it after a pass
// that took long; otherwise no signal reads a clock.
func Suspect() { suspicion.Store(suspected) }

// Slow tells whether the last signals measured took so long that the event's owner
// must be cut off.
func (e *Foreign) Slow() bool { return e != nil && e.slow >= SlowSignals }

// NewForeign checks that fd is an eventfd. The error says what it is otherwise.
func NewForeign(fd int) (*Foreign, error) {
	if err := CheckEvent(fd); err != nil {
		return nil, err
	}
	e := &Foreign{fd: fd}
	e.list[0] = &e.request
	e.Place(0)
	return e, nil
}

// CheckEvent tells whether fd is an eventfd.
func CheckEvent(fd int) error {
	what, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("descriptor %d: %w", fd, err)
	}
	if what != "anon_inode:[eventfd]" { // a file's path begins with a slash
		return fmt.Errorf("the descriptor is %q, expected an eventfd", what)
	}
	return nil
}

// Place names the worker that signals the event most, so that workers seldom share
// a context. Nobody uses the event meanwhile.
func (e *Foreign) Place(worker int) {
	if e == nil {
		return
	}
	c, null := contextOf(worker)
	e.via = c
	e.request = request{op: opPread, fd: uint32(null), flags: flagResultEvent, result: uint32(e.fd)}
}

// Signal makes the event readable and wakes whoever waits for it.
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

// measured signals, and returns the CPU time of the thread in ns. Wall time would count
// a process that the signal wakes on this core.
func (e *Foreign) measured() int64 {
	before := threadNS()
	e.signal()
	return threadNS() - before
}

// Probe signals, off any worker's core, and refuses an event with too many waiters.
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

// threadNS is the CPU time of the calling thread.
func threadNS() int64 {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

// writeAnyway is Signal without a context. A front end that clears O_NONBLOCK between
// the two calls may block it; Prepare's error names the remedy.
func (e *Foreign) writeAnyway() {
	if unix.SetNonblock(e.fd, true) == nil {
		SignalOwn(e.fd)
	}
}
