// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reserved has memory that Reserve has allocated and that no call of Private has taken yet.
var reserved struct {
	sync.Mutex
	blocks [][]byte
}

// Private returns n zeroed elements in memory that is not shared. The kernel has already allocated its
// pages, as huge pages if possible: with small pages, every second access to a large table would need
// a page walk. T must not contain pointers.
func Private[T any](n int) []T {
	size := privateBytes[T](n)
	mem := takeReserved(size)
	if mem == nil {
		mem = populated(size)
	}
	return View[T](mem, 0, n)
}

// Reserve allocates the memory that the next Private of the same size returns. It takes milliseconds,
// because the kernel allocates the pages.
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
	// error ignored: without MADV_HUGEPAGE the kernel uses small pages
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	return mem
}
