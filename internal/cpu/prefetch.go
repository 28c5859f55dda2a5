// SPDX-License-Identifier: Apache-2.0

package cpu

import "unsafe"

// Prefetch prefetches the first cache line of element n after base, for each n in numbers. A number
// out of range is harmless. With Prefetch, a look-up in the flow cache takes 57 instead of 77 ns a
// frame at 100,000 flows, and 22 instead of 25 ns at 10,000 flows.
func Prefetch[T any](base *T, numbers []uint32) {
	if len(numbers) > 0 {
		prefetch(unsafe.Pointer(base), unsafe.Sizeof(*base), &numbers[0], len(numbers))
	}
}
