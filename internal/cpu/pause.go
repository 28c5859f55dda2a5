// SPDX-License-Identifier: Apache-2.0

package cpu

// Pause executes n pause instructions (PAUSE on amd64, YIELD on arm64) of 10 to 150
// cycles each. Between two polls they spare the core's other hardware thread and the
// memory bus.
func Pause(n int) {
	for ; n > 0; n-- {
		pause()
	}
}
