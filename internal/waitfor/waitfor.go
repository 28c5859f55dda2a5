// SPDX-License-Identifier: Apache-2.0

// Package waitfor has tests wait for what other goroutines do.
package waitfor

import (
	"testing"
	"time"
)

// patience is far longer than anything that is waited for takes: a busy machine does
// not fail a test.
const patience = 30 * time.Second

// True waits until ok reports true, and fails the test, naming what, if it never does.
func True(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("does not come: %s", what)
		}
	}
}
