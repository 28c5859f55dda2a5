// Package shm is the memory that the two processes share: regions (memfd), rings
// of messages between one producer and one consumer, and typed views. It is one
// of the few places that may use unsafe.
package shm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Region is a sealed memfd mapped into this process. It holds no Go pointers.
// The descriptor can be sent to the other process, which Opens it.
type Region struct {
	fd  int
	mem []byte
}

// Create makes a zeroed region of size bytes, rounded up to pages, that can
// neither shrink nor grow. Pages take memory only once touched.
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

// Open maps all of the region behind fd, and owns fd from then on, also when it
// fails (it is closed).
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

// FD is the region's descriptor; the region owns it.
func (r *Region) FD() int { return r.fd }

// Bytes is the whole region. Valid until Close.
func (r *Region) Bytes() []byte { return r.mem }

// Close unmaps the region and closes its descriptor. Views become invalid.
func (r *Region) Close() error {
	err := unix.Munmap(r.mem)
	unix.Close(r.fd)
	r.mem, r.fd = nil, -1
	return err
}

// View returns n values of T that start off bytes into mem, in place. T must
// hold no pointers, and off must suit its alignment; View panics if the values
// do not lie in mem, for both sides compute offsets from the same constants.
func View[T any](mem []byte, off, n int) []T {
	var t T
	size := int(unsafe.Sizeof(t))
	if off < 0 || n < 0 || off%int(unsafe.Alignof(t)) != 0 || off+n*size > len(mem) {
		panic(fmt.Sprintf("shm: view of %d times %d bytes at %d in %d", n, size, off, len(mem)))
	}
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&mem[off])), n)
}

// Layout hands out aligned pieces of a region in order, so that both processes
// arrive at the same offsets by making the same calls. With a nil Mem it only
// measures.
type Layout struct {
	Mem []byte
	Off int
}

// Carve takes n values of T from the layout, each piece starting at a cache
// line. It returns nil while measuring.
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

// Populate puts the pages of s, which lies in a region, in place, so that nobody who
// writes there waits for them. A kernel that cannot leaves it to whoever writes.
func Populate[T any](s []T) {
	if len(s) == 0 {
		return
	}
	page := uintptr(unix.Getpagesize())
	at := uintptr(unsafe.Pointer(&s[0]))
	skipped := -at & (page - 1) // of a page that others begin
	if size := uintptr(len(s)) * unsafe.Sizeof(s[0]); size > skipped {
		mem := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&s[0]), skipped)), size-skipped)
		_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	}
}
