// SPDX-License-Identifier: Apache-2.0

// Package iovec wraps the system calls readv, writev and sendmmsg, with their vectors in
// mapped memory. Tap and packet-socket ports use it.
package iovec

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// Vector is the kernel's struct iovec (include/uapi/linux/uio.h). Base is an address instead of a Go
// pointer, because it usually refers to guest memory.
type Vector struct {
	Base uintptr
	Len  uintptr
}

// Size is the size of a Vector in bytes on a 64-bit kernel.
const Size = 16

var _ [Size]byte = [unsafe.Sizeof(Vector{})]byte{}

// BatchBytes limits the bytes that a queue receives into one batch, so that the batch stays in the CPU
// cache.
const BatchBytes = 128 << 10

// Max is the kernel's limit of vectors per system call (UIO_MAXIOV).
const Max = 1024

// Map returns n bytes of zeroed memory that is not in the Go heap.
func Map(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return mem, nil
}

// View returns the memory mem as a slice of n vectors, without a copy.
func View(mem []byte, n int) []Vector { return shm.View[Vector](mem, 0, n) }

// Address returns the address of the first byte of mem, which must not be empty. The
// address does not keep mem alive, so mem must be mapped memory, or part of a batch
// that the caller keeps.
func Address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// Readv reads from the non-blocking file descriptor fd into n vectors; the argument vectors is the
// address of the first one. The call bypasses Go's scheduler.
func Readv(fd int, vectors uintptr, n int) (int, unix.Errno) {
	return call(unix.SYS_READV, fd, vectors, n)
}

// Writev writes the bytes of n vectors to the non-blocking file descriptor fd; the argument vectors is
// the address of the first one. The call bypasses Go's scheduler.
func Writev(fd int, vectors uintptr, n int) (int, unix.Errno) {
	return call(unix.SYS_WRITEV, fd, vectors, n)
}

// Message is the kernel's struct mmsghdr (include/linux/socket.h), for a message without address and
// control data. The field Vectors is the address of the first of Count vectors.
type Message struct {
	_       [2]uint64 // address
	Vectors uintptr
	Count   uint64
	_       [4]uint64 // control data, flags, and the length that the kernel writes
}

// MessageSize is the size of a Message in bytes on a 64-bit kernel.
const MessageSize = 64

var _ [MessageSize]byte = [unsafe.Sizeof(Message{})]byte{}

// Messages returns the memory mem as a slice of n messages, without a copy.
func Messages(mem []byte, n int) []Message { return shm.View[Message](mem, 0, n) }

// Set makes the given vectors the content of the message. They must be in mapped memory, because the
// garbage collector does not see that the message refers to them.
func (m *Message) Set(vectors []Vector) {
	m.Vectors, m.Count = uintptr(unsafe.Pointer(unsafe.SliceData(vectors))), uint64(len(vectors))
}

// SendMessages sends messages, which are in mapped memory, to the non-blocking socket fd
// with one system call. It returns the number of messages that the kernel has taken, or
// the error of the first message. The call bypasses Go's scheduler.
func SendMessages(fd int, messages []Message) (int, unix.Errno) {
	return call(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(messages))), len(messages))
}

func call(trap uintptr, fd int, vectors uintptr, n int) (int, unix.Errno) {
	for {
		r, _, errno := unix.RawSyscall6(trap, uintptr(fd), vectors, uintptr(n), 0, 0, 0) // 0: no flags of sendmmsg
		if errno != unix.EINTR {
			return int(r), errno
		}
	}
}
