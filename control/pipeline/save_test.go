// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"iter"
	"slices"
	"testing"
	"time"

	"weft/control/pipeline"
	"weft/control/store"
	"weft/internal/waitfor"
	"weft/openflow"
)

// slowStore is a store in which writes of flows block until the test releases them.
type slowStore struct {
	pipeline.Store
	began, write chan struct{}
}

func (s slowStore) WriteFlows(save iter.Seq[store.Flow], remove []uint32) error {
	s.began <- struct{}{}
	<-s.write
	return s.Store.WriteFlows(save, remove)
}

// Changes by flow_mods do not wait for the disk. A later write waits for the earlier
// one, so that the state file ends with the last state.
func TestChangesDoNotWaitForTheDisk(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	slow := slowStore{f.Store, make(chan struct{}), make(chan struct{})}
	f.Store = slow
	each := func(command openflow.Command, text string) {
		t.Helper()
		mod, err := openflow.ParseFlowMod(text, command, nil)
		if err != nil {
			t.Fatal(err)
		}
		tx := f.Configuration.Begin()
		defer tx.Commit()
		if errs := f.P.ApplyEach(tx, []openflow.FlowMod{mod}); len(errs) != 1 || errs[0] != nil {
			t.Fatal(errs)
		}
	}
	each(openflow.Add, "in_port=1,actions=2")
	<-slow.began // the first write waits
	each(openflow.Add, "in_port=2,actions=1")
	each(openflow.Delete, "in_port=1")
	each(openflow.Add, "in_port=3,actions=1")
	close(slow.write)
	<-slow.began
	waitfor.True(t, "the state file has the last state", func() bool {
		saved, err := f.Disk.Load()
		var texts []string
		for _, flow := range saved.Flows {
			texts = append(texts, flow.Text)
		}
		slices.Sort(texts)
		return err == nil && slices.Equal(texts, []string{"in_port=2 actions=output:1", "in_port=3 actions=output:1"})
	})
	f.Store = slow.Store
}

// After a Save that has saved all changes, nothing is written any more, because the
// store may be closed.
func TestNothingIsWrittenAfterSave(t *testing.T) {
	f := newRig(t)
	slow := slowStore{f.Store, make(chan struct{}, 9), make(chan struct{})}
	close(slow.write)
	f.Store = slow
	mod, err := openflow.ParseFlowMod("in_port=1,actions=drop", openflow.Add, nil)
	if err != nil {
		t.Fatal(err)
	}
	tx := f.Configuration.Begin()
	f.P.ApplyEach(tx, []openflow.FlowMod{mod})
	f.P.Save(tx)
	tx.Commit()
	time.Sleep(3 * pipeline.SaveDelay)
	if n := len(slow.began); n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
}
