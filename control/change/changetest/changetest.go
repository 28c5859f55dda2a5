// SPDX-License-Identifier: Apache-2.0

// Package changetest serves tests of changes.
package changetest

import (
	"time"

	"weft/control/change"
)

// heldTime is how long a transaction must keep others waiting so that Held notices it.
const heldTime = 20 * time.Millisecond

// Held reports whether somebody has kept a transaction open for heldTime.
func Held(c *change.Configuration) bool {
	free := make(chan struct{})
	go func() {
		c.Begin().Commit()
		close(free)
	}()
	select {
	case <-free:
		return false
	case <-time.After(heldTime):
		return true
	}
}
