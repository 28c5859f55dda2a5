package shm

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Foreign is an eventfd that a process outside of Weft has too: a front end's kick,
// call or err descriptor. O_NONBLOCK belongs to the file description, so that the
// front end can clear it at any time. A front end that also fills the counter blocks
// a write, and one that empties the counter blocks a read. No system call here
// depends on O_NONBLOCK:
//
//   - Signal submits a request that completes at once, with the eventfd as its result
//     event (IOCB_FLAG_RESFD). The kernel's eventfd_signal stops counting at the
//     counter's maximum, wakes whoever waits, and never waits itself.
//   - Drain reads with RWF_NOWAIT, which fs/eventfd.c honours from Linux 5.8 on.
//
// The descriptor stays the caller's. Methods of nil do nothing. Signal may be called
// by several goroutines at once, Drain by one.
type Foreign struct {
	fd      int
	via     *completions // nil: no context was to be had, see writeAnyway
	request request
	list    [1]*request // io_submit's argument
	counter [8]byte
	vector  unix.Iovec
}

// NewForeign checks that fd is an eventfd. The error says what it is otherwise.
func NewForeign(fd int) (*Foreign, error) {
	if err := CheckEvent(fd); err != nil {
		return nil, err
	}
	e := &Foreign{fd: fd}
	e.list[0] = &e.request
	e.vector.Base = &e.counter[0]
	e.vector.SetLen(len(e.counter))
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

// FD is the descriptor, to wait on; -1 of nil.
func (e *Foreign) FD() int {
	if e == nil {
		return -1
	}
	return e.fd
}

// Signal makes the event readable and wakes whoever waits for it.
func (e *Foreign) Signal() {
	if e == nil {
		return
	}
	if e.via == nil || !e.via.submit(&e.list) {
		e.writeAnyway()
	}
}

// writeAnyway is Signal without a context. A front end that clears O_NONBLOCK between
// the two calls may block it; Prepare's error names the remedy.
func (e *Foreign) writeAnyway() {
	if unix.SetNonblock(e.fd, true) == nil {
		SignalOwn(e.fd)
	}
}

// Drain makes the event unreadable; with EFD_SEMAPHORE it counts one down. The call
// does not enter the scheduler, for it returns at once.
func (e *Foreign) Drain() {
	if e == nil {
		return
	}
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_PREADV2, uintptr(e.fd), uintptr(unsafe.Pointer(&e.vector)), 1,
			^uintptr(0), ^uintptr(0), unix.RWF_NOWAIT)
		if errno != unix.EINTR {
			return
		}
	}
}
