// SPDX-License-Identifier: Apache-2.0

// Package bench has the common parts of the benchmarks: the state of the machine,
// medians with their spread, and the format of results. The benchmarks that compare
// Weft with other switches, its peers, are in bench/suite.
package bench

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Regime returns the time of a cache-line round trip between two cores. On shared
// machines this time changes every few minutes, and throughput changes with it by a
// factor of up to four. Results of different regimes are therefore not comparable.
func Regime(coreA, coreB int) (time.Duration, error) {
	const rounds = 300_000
	var turn struct {
		_ [64]byte
		v atomic.Uint32
		_ [64]byte
	}
	play := func(core int, me uint32) error {
		runtime.LockOSThread() // without UnlockOSThread, the thread ends with its goroutine
		var set unix.CPUSet
		set.Set(core)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("pin to core %d: %w", core, err)
		}
		for range rounds {
			for turn.v.Load() != me {
			}
			turn.v.Store(1 - me)
		}
		return nil
	}
	start := time.Now()
	errs := make(chan error, 2)
	go func() { errs <- play(coreA, 0) }()
	go func() { errs <- play(coreB, 1) }()
	for range 2 {
		if err := <-errs; err != nil {
			return 0, err
		}
	}
	return time.Since(start) / rounds, nil
}

// nearBelow is the round-trip time below which two cores count as cores that share a cache.
const nearBelow = 200 * time.Nanosecond

// RegimeName returns "near" if the round-trip time is that of two cores that share a cache, and "far"
// if it is that of two cores that do not. It returns "between" if the time could be either.
func RegimeName(d time.Duration) string {
	switch {
	case d < nearBelow:
		return "near"
	case d > 300*time.Nanosecond:
		return "far"
	}
	return "between"
}
