package cpu

// Pause tells the core n times that this thread waits for another (PAUSE on
// amd64, YIELD on arm64): the core's other thread and the memory bus are left
// alone meanwhile. One takes some 10 to 150 cycles.
func Pause(n int) {
	for ; n > 0; n-- {
		pause()
	}
}
