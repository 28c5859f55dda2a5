// Package loop has what the background loops of the control process share: a sleep
// that ends with a context, and a wake-up that is sent once for many events. It has
// no state.
package loop

import (
	"context"
	"time"
)

// Sleep waits for d and reports false if ctx ended first.
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

// Notify wakes the receiver of c, which has a buffer of one: events that come before
// it wakes are one wake-up.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
