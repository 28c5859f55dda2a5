// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"
	"time"

	"weft/control/workers"
	"weft/datapath"
	"weft/engine"
)

// A call that waits for workers returns when their engine ends, even while the engine is being replaced.
func TestWaitingEndsWithTheEngine(t *testing.T) {
	f := newFakes(t)
	f.end()
	prepared := make(chan struct{})
	f.launcher.prepare = func() (*engine.Spare, error) {
		<-prepared
		return nil, nil
	}
	defer close(prepared)
	f.begin()
	w := f.d.pipeline.Workers()
	f.worker().Stalled.Store(true)
	w.Broadcast(datapath.AppendCommand(nil, datapath.CmdHold, 0, nil))
	ended := make(chan error, 1)
	go func() { ended <- w.WaitApplied() }()
	if err := f.last().Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != workers.ErrGone {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the wait for workers goes on although their engine has died")
	}
}
