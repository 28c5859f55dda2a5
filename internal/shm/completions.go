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

// request is struct iocb of linux/aio_abi.h on a little-endian machine.
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

// completionRing is the header of struct aio_ring of fs/aio.c, which is at the address of an
// asynchronous I/O context. The kernel advances tail, and user space advances head.
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
	// maxContexts is the largest number of asynchronous I/O contexts in a process.
	// More workers share contexts, which is slower.
	maxContexts = 16
	// contextRequests is the number of requests per context. They count against the
	// machine's limit fs.aio-max-nr, 65,536 by default.
	contextRequests = 1
	// submitTries is the number of attempts to submit a request. After each one, submit empties the
	// completion ring.
	submitTries = 3
)

// completions is an asynchronous I/O context of the kernel. Every request is complete when io_submit
// returns. Several threads may use one context. They may store the position "head" of its completion ring
// in any order.
type completions struct {
	id   uintptr
	ring *completionRing
}

func newCompletions() (*completions, error) {
	c := &completions{}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, contextRequests, uintptr(unsafe.Pointer(&c.id)), 0); errno != 0 {
		return nil, errno
	}
	// The kernel's identifier of the context is the address of its completion ring.
	c.ring = *(**completionRing)(unsafe.Pointer(&c.id))
	if c.ring.magic != ringMagic || c.ring.incompat != 0 {
		return nil, fmt.Errorf("the completion ring has magic %#x and features %#x", c.ring.magic, c.ring.incompat)
	}
	return c, nil
}

// submit submits a request. It returns false if the kernel lacks memory or slots for it. It returns
// true for other errors, such as a result descriptor that is no eventfd. The call bypasses Go's
// scheduler, because it never blocks.
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

// contexts has the asynchronous I/O contexts of the process. They are never freed, because
// io_destroy(2) waits for an RCU grace period of the kernel.
var contexts struct {
	sync.Mutex
	list []*completions
	null int // descriptor of /dev/null, which the requests read
}

// Prepare creates the asynchronous I/O contexts for Foreign.Signal. A later call creates those that
// are missing. Without a context, Signal writes to the eventfd, which a front end can block.
func Prepare() error {
	contexts.Lock()
	defer contexts.Unlock()
	return prepare()
}

func prepare() error {
	want := min(runtime.NumCPU(), maxContexts)
	if len(contexts.list) == want {
		return nil
	}
	if contexts.null == 0 {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("events of front ends: /dev/null: %w", err)
		}
		contexts.null = fd
	}
	for len(contexts.list) < want {
		c, err := newCompletions()
		switch {
		case errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("events of front ends: no asynchronous I/O context (%w): raise sysctl fs.aio-max-nr", err)
		case err != nil:
			return fmt.Errorf("events of front ends: asynchronous I/O: %w", err)
		}
		contexts.list = append(contexts.list, c)
	}
	return nil
}

// contextOf returns a worker's context, or nil if the process has none, and the descriptor of
// /dev/null.
func contextOf(worker int) (*completions, int) {
	contexts.Lock()
	defer contexts.Unlock()
	_ = prepare() // error ignored: the first call of Prepare has returned it
	if len(contexts.list) == 0 {
		return nil, 0
	}
	return contexts.list[worker%len(contexts.list)], contexts.null
}
