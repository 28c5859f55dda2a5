package shm

import (
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reserved is memory that Private takes before it asks for more.
var reserved struct {
	sync.Mutex
	blocks [][]byte
}

// Private returns n zeroed elements that no other process sees, their pages in
// place and, where the kernel gives them, huge: a table that is read here and there
// costs a walk of the page tables with every other access otherwise. T has no
// pointers.
func Private[T any](n int) []T {
	size := privateBytes[T](n)
	mem := takeReserved(size)
	if mem == nil {
		mem = populated(size)
	}
	return View[T](mem, 0, n)
}

// Reserve makes the memory of a later Private of as many bytes: putting pages in
// place takes milliseconds, for which not everybody has the time later.
func Reserve[T any](n int) {
	mem := populated(privateBytes[T](n))
	reserved.Lock()
	defer reserved.Unlock()
	reserved.blocks = append(reserved.blocks, mem)
}

func privateBytes[T any](n int) int {
	var t T
	return max(n*int(unsafe.Sizeof(t)), 1)
}

func takeReserved(size int) []byte {
	reserved.Lock()
	defer reserved.Unlock()
	for i, mem := range reserved.blocks {
		if len(mem) == size {
			reserved.blocks = slices.Delete(reserved.blocks, i, i+1)
			return mem
		}
	}
	return nil
}

func populated(size int) []byte {
	mem := make([]byte, size)
	// Advice: an old kernel, or one that is told not to, gives plain pages.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	return mem
}
