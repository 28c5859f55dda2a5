// SPDX-License-Identifier: Apache-2.0

package cpu

import "unsafe"

// Prefetch prefetches the first cache line of each record base[n] with n in numbers.
// It has no effect but on time: the flow cache takes 57 instead of 77 ns a frame at
// 100,000 flows, and 22 instead of 25 at 10,000, where plain loads gained nothing. A
// number out of range is harmless.
func Prefetch[T any](base *T, numbers []uint32) {
	if len(numbers) > 0 {
		prefetch(unsafe.Pointer(base), unsafe.Sizeof(*base), &numbers[0], len(numbers))
	}
}
