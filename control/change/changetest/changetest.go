// SPDX-License-Identifier: Apache-2.0

// Package changetest tells tests whether a transaction of package change is open.
package changetest

import (
	"time"

	"weft/control/change"
)

// heldTime is how long Held waits for a transaction of its own before it reports that another is open.
const heldTime = 20 * time.Millisecond

// Held reports whether another transaction stays open for heldTime.
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
