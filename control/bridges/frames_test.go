// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"log/slog"
	"testing"

	"weft/control/change"
	"weft/control/observe"
	"weft/control/ofconn"
	"weft/control/pipeline"
	"weft/control/pipeline/pipelinetest"
	"weft/datapath"
)

// noWorkers are workers that ignore every command. They have no memory, so a capture may end after the
// test without harm.
type noWorkers struct{ observe.Workers }

func (noWorkers) Broadcast([]byte)           {}
func (noWorkers) WaitApplied() error         { return nil }
func (noWorkers) Shared() []*datapath.Shared { return nil }

// noEngine is an observe.Engine with these workers.
type noEngine struct{}

func (noEngine) Hold() (observe.Workers, func()) { return noWorkers{}, func() {} }

// A transaction replaces a bridge by another one with the same number. The new bridge still gets its
// frames when the old one is detached later.
func TestFramesOfReplacedBridge(t *testing.T) {
	f, log := pipelinetest.New(t), slog.New(slog.DiscardHandler)
	frames := NewFrames(&f.Configuration, f.P, observe.NewCaptures(noEngine{}, log), new(ofconn.Services), log)
	var before, after *pipeline.Bridge
	f.Configuration.Do(func(tx *change.Tx) { before = f.P.AddBridge(tx, 1, "br1") })
	frames.Set(before, true, false, false)
	f.Configuration.Do(func(tx *change.Tx) {
		f.Disk.DeleteBridge(tx, 1, f.P.RemoveBridge(tx, before))
		after = f.P.AddBridge(tx, 1, "br2")
	})
	frames.Set(after, true, false, false)
	frames.Set(before, false, false, false) // the connections of the old bridge end
	frames.Detach(before)
	if frames.stop == nil {
		t.Error("the frames of the new bridge have ended")
	}
	frames.Detach(after)
	if frames.stop != nil {
		t.Error("the frames of no bridge are captured")
	}
}
