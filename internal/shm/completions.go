// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// request is struct iocb of linux/aio_abi.h, little endian.
type request struct {
	_      uint64 // data
	_      uint32 // key
	_      uint32 // flags of preadv2
	op     uint16
	_      int16 // priority
	fd     uint32
	_      uint64 // buffer
	_      uint64 // length of the buffer
	_      int64  // offset
	_      uint64
	flags  uint32
	result uint32 // descriptor of the eventfd to signal
}

// completionRing is struct aio_ring of fs/aio.c, which the kernel maps at the
// context's address. The kernel moves tail; user space moves head.
type completionRing struct {
	_          uint32 // id
	_          uint32 // number of slots
	head, tail atomic.Uint32
	magic      uint32
	_          uint32 // compatible features
	incompat   uint32
	_          uint32 // length of the header
}

var (
	_ = [1]struct{}{}[unsafe.Sizeof(request{})-64]
	_ = [1]struct{}{}[unsafe.Sizeof(completionRing{})-32]
)

const (
	opPread         = 0 // IOCB_CMD_PREAD
	flagResultEvent = 1 // IOCB_FLAG_RESFD
	ringMagic       = 0xa10a10a1
	// maxContexts is the largest number of contexts of a process. With more workers,
	// some share a context: this is correct, but slower, because their cores compete
	// for its cache lines.
	maxContexts = 16
	// contextRequests is the number of requests of a context. It counts against the
	// machine's fs.aio-max-nr, 65,536 by default. The kernel rounds the ring up to a
	// page.
	contextRequests = 1
	// submitTries is the number of times Signal tries to submit to a full completion
	// ring, emptying it in between.
	submitTries = 3
)

// completions is an asynchronous I/O context. Every request is complete when
// io_submit returns. Several threads may use one context: each moves head to the tail
// that it saw. A head that lags behind only delays the kernel's count of free slots.
type completions struct {
	id   uintptr
	ring *completionRing
}

func newCompletions() (*completions, error) {
	c := &completions{}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, contextRequests, uintptr(unsafe.Pointer(&c.id)), 0); errno != 0 {
		return nil, errno
	}
	// The identifier is the ring's address.
	c.ring = *(**completionRing)(unsafe.Pointer(&c.id))
	if c.ring.magic != ringMagic || c.ring.incompat != 0 {
		return nil, fmt.Errorf("the completion ring has magic %#x and features %#x", c.ring.magic, c.ring.incompat)
	}
	return c, nil
}

// submit returns false if the kernel lacks memory or slots for the request. It
// returns true for a request that the kernel refuses because the result descriptor is
// no eventfd; such a request signals nothing. The call bypasses Go's scheduler,
// because it returns at once.
func (c *completions) submit(list *[1]*request) bool {
	for range submitTries {
		n, _, errno := unix.RawSyscall(unix.SYS_IO_SUBMIT, c.id, 1, uintptr(unsafe.Pointer(list)))
		c.ring.head.Store(c.ring.tail.Load())
		if n == 1 && errno == 0 {
			return true
		}
		if errno != unix.EAGAIN && errno != unix.EINTR {
			return true
		}
	}
	return false
}

// contexts are the contexts of the process. Prepare makes them. They are never freed,
// because io_destroy waits for a grace period of the kernel.
var contexts struct {
	sync.Mutex
	all  []*completions
	null int // descriptor of /dev/null, from which requests read nothing
}

// Prepare makes the contexts that Foreign.Signal uses. A later call tries again to
// make the missing ones. Without any context, Signal writes to the eventfd, and a
// front end can block the writer.
func Prepare() error {
	contexts.Lock()
	defer contexts.Unlock()
	return prepare()
}

func prepare() error {
	want := min(runtime.NumCPU(), maxContexts)
	if len(contexts.all) == want {
		return nil
	}
	if contexts.null == 0 {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("events of front ends: /dev/null: %w", err)
		}
		contexts.null = fd
	}
	for len(contexts.all) < want {
		c, err := newCompletions()
		switch {
		case errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("events of front ends: no asynchronous I/O context (%w): raise sysctl fs.aio-max-nr", err)
		case err != nil:
			return fmt.Errorf("events of front ends: asynchronous I/O: %w", err)
		}
		contexts.all = append(contexts.all, c)
	}
	return nil
}

// contextOf returns a worker's context, or nil if there are none, and the descriptor
// that its requests read.
func contextOf(worker int) (*completions, int) {
	contexts.Lock()
	defer contexts.Unlock()
	_ = prepare() // Prepare reported the error at the start
	if len(contexts.all) == 0 {
		return nil, 0
	}
	return contexts.all[worker%len(contexts.all)], contexts.null
}
