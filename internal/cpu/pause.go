// SPDX-License-Identifier: Apache-2.0

package cpu

// Pause executes n pause instructions (PAUSE on amd64, YIELD on arm64) in a thread
// that waits for another. They leave the core's other hardware thread and the memory
// bus undisturbed. One takes 10 to 150 cycles.
func Pause(n int) {
	for ; n > 0; n-- {
		pause()
	}
}
