// SPDX-License-Identifier: Apache-2.0

package cpu

// Pause executes n pause instructions (PAUSE on amd64, YIELD on arm64). A thread that
// polls uses it between two polls, so that it disturbs neither the core's other
// hardware thread nor the memory bus. A pause instruction takes 10 to 150 cycles.
func Pause(n int) {
	for ; n > 0; n-- {
		pause()
	}
}
