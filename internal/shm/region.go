// SPDX-License-Identifier: Apache-2.0

// Package shm manages the memory that the control process and the engine share:
// regions (memfd), message rings between one producer and one consumer, and typed
// views.
package shm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Region is a sealed memfd that is mapped into this process. It contains no Go
// pointers.
type Region struct {
	fd  int
	mem []byte
}

// Create creates a zeroed region of size bytes, rounded up to pages. The region can
// neither shrink nor grow. The kernel allocates a page at its first use.
func Create(name string, size int) (*Region, error) {
	page := unix.Getpagesize()
	size = (size + page - 1) &^ (page - 1)
	fd, err := unix.MemfdCreate("weft-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("region %s: memfd_create: %w", name, err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("region %s: %d bytes: %w", name, size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("region %s: seal: %w", name, err)
	}
	return Open(fd)
}

// Open maps the whole region behind the file descriptor fd. The Region owns fd. If
// Open fails, it closes fd.
func Open(fd int) (*Region, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("region: stat: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("region: map %d bytes: %w", st.Size, err)
	}
	return &Region{fd: fd, mem: mem}, nil
}

// FD returns the region's file descriptor, which the Region owns.
func (r *Region) FD() int { return r.fd }

// Bytes returns the memory of the whole region. It is valid until Close.
func (r *Region) Bytes() []byte { return r.mem }

// Close unmaps the region and closes its file descriptor. Views of the region become
// invalid.
func (r *Region) Close() error {
	err := unix.Munmap(r.mem)
	unix.Close(r.fd)
	r.mem, r.fd = nil, -1
	return err
}

// View returns n values of type T without a copy: the memory mem from the byte offset on. T must not
// contain pointers, and offset must be aligned for T. View panics if the values exceed mem, which can
// only happen through a bug.
func View[T any](mem []byte, offset, n int) []T {
	var t T
	size := int(unsafe.Sizeof(t))
	if offset < 0 || n < 0 || offset%int(unsafe.Alignof(t)) != 0 || offset+n*size > len(mem) {
		panic(fmt.Sprintf("shm: view of %d times %d bytes at %d in %d", n, size, offset, len(mem)))
	}
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&mem[offset])), n)
}

// Layout divides the memory of a region into aligned pieces. The control process and the engine process
// make the same calls, so they get the same offsets. If Mem is nil, Layout only adds up the size.
type Layout struct {
	Mem []byte
	Off int
}

// Carve returns the next n values of type T, which begin on a cache line. It returns nil if l.Mem is
// nil.
func Carve[T any](l *Layout, n int) []T {
	var t T
	l.Off = (l.Off + 63) &^ 63
	off := l.Off
	l.Off += n * int(unsafe.Sizeof(t))
	if l.Mem == nil {
		return nil
	}
	return View[T](l.Mem, off, n)
}

// Populate makes the kernel allocate the pages of s, which is part of a region, so that no later write
// waits for that. An older kernel ignores the request (MADV_POPULATE_WRITE, Linux 5.14).
func Populate[T any](s []T) {
	if len(s) == 0 {
		return
	}
	page := uintptr(unix.Getpagesize())
	at := uintptr(unsafe.Pointer(&s[0]))
	skipped := -at & (page - 1) // number of bytes before s in the first page
	if size := uintptr(len(s)) * unsafe.Sizeof(s[0]); size > skipped {
		mem := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&s[0]), skipped)), size-skipped)
		_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	}
}
