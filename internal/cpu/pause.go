// SPDX-License-Identifier: Apache-2.0

package cpu

// Pause executes n pause instructions (PAUSE on amd64, YIELD on arm64) of 10 to 150
// cycles each. Executed between two polls, they leave more of the core to its other
// hardware thread, and reduce traffic on the memory bus.
func Pause(n int) {
	for ; n > 0; n-- {
		pause()
	}
}
