// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"testing"
	"time"
)

func TestSleepEndsWithTheContext(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	if !Sleep(ctx, time.Microsecond) {
		t.Error("a sleep in a context that goes on was cut short")
	}
	stop()
	if Sleep(ctx, time.Hour) {
		t.Error("a sleep outlived its context")
	}
}

func TestNotifyMergesEvents(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 3 {
		Notify(c)
	}
	<-c
	select {
	case <-c:
		t.Error("three events before the wake-up were two wake-ups")
	default:
	}
}
