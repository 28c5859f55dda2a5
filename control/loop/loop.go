// SPDX-License-Identifier: Apache-2.0

// Package loop has helpers for background loops: an interruptible sleep, and one
// wake-up for many events.
package loop

import (
	"context"
	"time"
)

// Sleep waits for the duration d. It returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Notify wakes the receiver of channel c, whose buffer has one element. Events before
// the receiver wakes up are merged into one wake-up.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
