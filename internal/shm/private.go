package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Private returns n zeroed elements that no other process sees, their pages in
// place and, where the kernel gives them, huge: a table that is read here and there
// costs a walk of the page tables with every other access otherwise. T has no
// pointers.
func Private[T any](n int) []T {
	var t T
	mem := make([]byte, max(n*int(unsafe.Sizeof(t)), 1))
	// Advice: an old kernel, or one that is told not to, gives plain pages.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	return View[T](mem, 0, n)
}
