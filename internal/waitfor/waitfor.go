// SPDX-License-Identifier: Apache-2.0

// Package waitfor lets tests wait for effects of other goroutines.
package waitfor

import (
	"testing"
	"time"
)

// patience is the time limit of a wait, long enough for a busy machine.
const patience = 30 * time.Second

// True waits until ok returns true. If this takes too long, the test fails with the
// message what.
func True(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen in time: %s", what)
		}
	}
}

// Return calls call, which must not block, and fails the test if call has not returned
// after a time that exceeds every delay of the scheduler. It then unblocks call with
// release.
func Return(t testing.TB, what string, release, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Errorf("%s blocks", what)
		release()
		<-done
	}
}
