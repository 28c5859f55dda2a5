package shm

import "unsafe"

// Words returns the 64-bit words of *v in place: a block of counters, to be
// summed word by word. T holds nothing but uint64, and Words panics if its size
// or alignment is not theirs.
func Words[T any](v *T) []uint64 {
	size, align := unsafe.Sizeof(*v), unsafe.Alignof(*v)
	if size%8 != 0 || align != 8 {
		panic("shm: not made of 64-bit words")
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(v)), size/8)
}
