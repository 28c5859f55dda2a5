// SPDX-License-Identifier: Apache-2.0

package cpu

// Pause executes n pause instructions (PAUSE on amd64, YIELD on arm64), each of which takes 10 to 150
// cycles. A thread that polls calls it between two polls: it leaves more of the core to the core's
// other hardware thread, and causes less traffic on the memory bus.
func Pause(n int) {
	for ; n > 0; n-- {
		pause()
	}
}
