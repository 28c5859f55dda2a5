// SPDX-License-Identifier: Apache-2.0

// Package iovec wraps readv and writev with vectors in mapped memory, for queues that
// make one system call a frame.
package iovec

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// Vector is the kernel's struct iovec (include/uapi/linux/uio.h). The base is a
// number, because vectors are outside of the Go heap and mostly point to foreign
// memory.
type Vector struct {
	Base uintptr
	Len  uintptr
}

// Size is the size of a Vector in bytes, as in the kernel of 64-bit machines.
const Size = 16

var _ [Size]byte = [unsafe.Sizeof(Vector{})]byte{}

// BatchBytes is the number of bytes after which a batch reads no further frame. It
// keeps the bytes in the cache until they are sent.
const BatchBytes = 128 << 10

// Max is the largest number of vectors of one call (UIO_MAXIOV).
const Max = 1024

// Map maps n bytes of zeroed memory outside of the Go heap.
func Map(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return mem, nil
}

// View returns n vectors at the start of mem.
func View(mem []byte, n int) []Vector { return shm.View[Vector](mem, 0, n) }

// Address returns the address of the first byte of mem, which must not be empty. A
// number keeps nothing alive, so mem must be mapped memory or a part of a batch that
// the caller holds. Go's heap does not move, and a batch passed through an interface
// is not on a stack.
func Address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// Readv reads from fd into n vectors at the address vectors. It bypasses Go's
// scheduler, because the descriptor does not block.
func Readv(fd int, vectors uintptr, n int) (int, unix.Errno) {
	return call(unix.SYS_READV, fd, vectors, n)
}

// Writev writes n vectors at the address vectors to fd, as Readv reads.
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
