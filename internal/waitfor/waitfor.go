// SPDX-License-Identifier: Apache-2.0

// Package waitfor lets tests wait for effects of other goroutines.
package waitfor

import (
	"testing"
	"time"
)

// patience is the time limit of a wait, long enough for a busy machine.
const patience = 2 * time.Minute

// True waits until the function ok returns true. If this takes longer than patience, the test ends
// with an error that has the text condition.
func True(t testing.TB, condition string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen in time: %s", condition)
		}
	}
}

// Return waits until the function call returns. If this takes longer than patience, the test fails
// with an error that begins with the text condition. Return then calls release, which must make call
// return.
func Return(t testing.TB, condition string, release, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Errorf("%s blocks", condition)
		release()
		<-done
	}
}
