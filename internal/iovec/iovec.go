// Package iovec is readv and writev over vectors that lie in mapped memory, for
// queues whose frames cost one system call each.
package iovec

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// Vector is the kernel's struct iovec (include/uapi/linux/uio.h) with the base as a
// number, for it lies in memory of its own outside of the Go heap and points to
// foreign memory mostly.
type Vector struct {
	Base uintptr
	Len  uintptr
}

// Size of a Vector in bytes, the kernel's on 64-bit machines.
const Size = 16

var _ [Size]byte = [unsafe.Sizeof(Vector{})]byte{}

// BatchBytes is how much a batch reads at most, but for what its last read adds, so
// that what was read is still in the cache when it is sent.
const BatchBytes = 128 << 10

// Max is what one call takes (UIO_MAXIOV).
const Max = 1024

// Map maps n bytes of zeroed memory outside of the Go heap.
func Map(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return mem, nil
}

// View takes n vectors from the start of mem.
func View(mem []byte, n int) []Vector { return shm.View[Vector](mem, 0, n) }

// Address of the first byte of mem, which must not be empty. A number keeps
// nothing alive: mem is mapped memory, or part of a batch that the caller holds
// (Go's heap does not move, and a batch that comes through an interface is not on
// a stack).
func Address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// Readv and Writev do not tell the scheduler: the descriptor does not block.
func Readv(fd int, vectors uintptr, n int) (int, unix.Errno) {
	return call(unix.SYS_READV, fd, vectors, n)
}

// Writev is Readv the other way.
func Writev(fd int, vectors uintptr, n int) (int, unix.Errno) {
	return call(unix.SYS_WRITEV, fd, vectors, n)
}

func call(trap uintptr, fd int, vectors uintptr, n int) (int, unix.Errno) {
	for {
		r, _, errno := unix.RawSyscall(trap, uintptr(fd), vectors, uintptr(n))
		if errno != unix.EINTR {
			return int(r), errno
		}
	}
}
