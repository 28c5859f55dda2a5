// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reserved is memory that Reserve has prepared for Private.
var reserved struct {
	sync.Mutex
	blocks [][]byte
}

// Private returns n zeroed elements in memory of this process alone. Its pages are
// populated, and huge if the kernel provides them: random access to a large table in
// small pages costs a page walk at every other access. T has no pointers.
func Private[T any](n int) []T {
	size := privateBytes[T](n)
	mem := takeReserved(size)
	if mem == nil {
		mem = populated(size)
	}
	return View[T](mem, 0, n)
}

// Reserve prepares the memory for a later Private of the same size. Populating pages
// takes milliseconds, which the later caller may not have.
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
	// MADV_HUGEPAGE is advice: a kernel without huge pages uses small ones.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	return mem
}
