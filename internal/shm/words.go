// SPDX-License-Identifier: Apache-2.0

package shm

import "unsafe"

// Words returns the 64-bit words of *v in place, so that a block of counters can be
// summed word by word. T consists of uint64 only. Words panics if T's size or
// alignment does not fit.
func Words[T any](v *T) []uint64 {
	size, align := unsafe.Sizeof(*v), unsafe.Alignof(*v)
	if size%8 != 0 || align != 8 {
		panic("shm: not made of 64-bit words")
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(v)), size/8)
}
