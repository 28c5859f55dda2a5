package tap

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// vector is the kernel's struct iovec (include/uapi/linux/uio.h) with the base
// as a number, for it lies in memory of its own outside of the Go heap and
// points to foreign memory mostly.
type vector struct {
	base uintptr
	len  uintptr
}

// The kernel's layout on 64-bit machines.
var _ [16]byte = [unsafe.Sizeof(vector{})]byte{}

// anonymous maps n bytes of zeroed memory outside of the Go heap.
func anonymous(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return mem, nil
}

// vectors takes n vectors from the start of mem.
func vectors(mem []byte, n int) []vector { return shm.View[vector](mem, 0, n) }

// address of the first byte of mem, which must not be empty. A number keeps
// nothing alive: mem is mapped memory, or part of a batch that the caller holds
// (Go's heap does not move, and a batch that comes through an interface is not
// on a stack).
func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// readv and writev do not tell the scheduler: the descriptor does not block.
func readv(fd int, iov uintptr, n int) (int, unix.Errno) {
	return vectored(unix.SYS_READV, fd, iov, n)
}

func writev(fd int, iov uintptr, n int) (int, unix.Errno) {
	return vectored(unix.SYS_WRITEV, fd, iov, n)
}

func vectored(call uintptr, fd int, iov uintptr, n int) (int, unix.Errno) {
	for {
		r, _, errno := unix.RawSyscall(call, uintptr(fd), iov, uintptr(n))
		if errno != unix.EINTR {
			return int(r), errno
		}
	}
}
