// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log"
	"runtime"
	"slices"
	"sync"
	"time"

	"weft/internal/cpu"
)

// spin reads the clock on every core for the time d without pause, and prints the
// pauses. The machine itself causes these pauses.
func spin(d time.Duration) {
	cores, err := cpu.Allowed()
	if err != nil {
		log.Print(err)
		return
	}
	gaps := make([][]time.Duration, len(cores))
	var all sync.WaitGroup
	for i, core := range cores {
		all.Go(func() {
			runtime.LockOSThread() // without UnlockOSThread, the thread ends with its goroutine
			if err := cpu.Pin(core); err != nil {
				log.Print(err)
			}
			gaps[i] = spinGaps(d)
		})
	}
	all.Wait()
	for i, core := range cores {
		slices.Sort(gaps[i])
		longest, sum := time.Duration(0), time.Duration(0)
		for _, g := range gaps[i] {
			longest, sum = max(longest, g), sum+g
		}
		fmt.Printf("core %d: a plain loop was kept from running %d times in %v, %.2f ms in all, longest %.2f\n", core, len(gaps[i]), d, ms(sum), ms(longest))
	}
}

// leastGap is the shortest recorded pause.
const leastGap = 20 * time.Microsecond

func spinGaps(d time.Duration) (gaps []time.Duration) {
	begin := time.Now()
	for before := begin; before.Sub(begin) < d; {
		now := time.Now()
		if gap := now.Sub(before); gap > leastGap {
			gaps = append(gaps, gap)
		}
		before = now
	}
	return gaps
}
