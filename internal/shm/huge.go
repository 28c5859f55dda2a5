package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of the pages that Collapse asks for, in bytes. On a machine
// that has larger ones the kernel declines.
const hugePage = 2 << 20

// mapShared maps size bytes of fd, at a multiple of hugePage: a huge page of a file
// is mapped as one only where its address in memory agrees with that in the file.
func mapShared(fd, size int) ([]byte, error) {
	room := uintptr(size + hugePage)
	base, err := unix.MmapPtr(-1, 0, nil, room, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	before := -uintptr(base) & (hugePage - 1)
	at := unsafe.Add(base, before)
	if _, err := unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		_ = unix.MunmapPtr(base, room)
		return nil, err
	}
	if before > 0 {
		_ = unix.MunmapPtr(base, before)
	}
	behind := (uintptr(size) + uintptr(unix.Getpagesize()) - 1) &^ (uintptr(unix.Getpagesize()) - 1)
	_ = unix.MunmapPtr(unsafe.Add(at, behind), room-before-behind)
	return unsafe.Slice((*byte)(at), size), nil
}

// Collapse has the kernel put the memory of s, from CarveHuge, into huge pages, in all
// processes that map it, whether or not anything was written there. Pages of a size
// that is not a whole number of them, at the end, stay as they are. It fails where the
// kernel cannot or may not (before Linux 6.1, or without free memory in one piece).
func Collapse[T any](s []T) error {
	if len(s) == 0 {
		return nil
	}
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), uintptr(len(s))*unsafe.Sizeof(s[0]))
	mem = mem[:len(mem)&^(hugePage-1)]
	// A page must be there for the kernel to make more of it.
	for at := 0; at < len(mem); at += hugePage {
		if err := unix.Madvise(mem[at:at+unix.Getpagesize()], unix.MADV_POPULATE_WRITE); err != nil {
			return err
		}
	}
	if len(mem) == 0 {
		return nil
	}
	return unix.Madvise(mem, unix.MADV_COLLAPSE)
}
