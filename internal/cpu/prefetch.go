package cpu

import "unsafe"

// Prefetch asks for the first cache line of each record base[n], for n in numbers. It
// changes nothing but the time that follows (in the flow cache 77 to 57 ns a frame
// at 100,000 flows, 25 to 22 at 10,000, where plain loads gained nothing), and a
// number that is no record's does no harm.
func Prefetch[T any](base *T, numbers []uint32) {
	if len(numbers) > 0 {
		prefetch(unsafe.Pointer(base), unsafe.Sizeof(*base), &numbers[0], len(numbers))
	}
}
