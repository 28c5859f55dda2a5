// SPDX-License-Identifier: Apache-2.0

package shm

import "unsafe"

// Words returns the memory of *v as 64-bit words, without a copy, so that the caller can add up
// counters. T must consist of uint64 fields only. Words panics if the size or alignment of T is wrong.
func Words[T any](v *T) []uint64 {
	size, align := unsafe.Sizeof(*v), unsafe.Alignof(*v)
	if size%8 != 0 || align != 8 {
		panic("shm: not made of 64-bit words")
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(v)), size/8)
}
