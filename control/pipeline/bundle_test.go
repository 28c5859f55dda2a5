// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"iter"
	"testing"

	"weft/control/change"
	"weft/control/pipeline"
	"weft/control/store"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// A frame of a bundle goes through the flows that the bundle has added before it. It counts for those
// of these flows that still exist after the bundle. A refused frame refuses the bundle.
func TestFrameInBundle(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	flow := func(command openflow.Command, text string) ofproto.BundleItem {
		mod, err := openflow.ParseFlowMod(text, command, nil)
		if err != nil {
			t.Fatal(err)
		}
		return ofproto.BundleItem{Flow: &mod}
	}
	frame := func(actions string) ofproto.BundleItem {
		b := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5}, bytes.Repeat([]byte{0}, 46)...)
		out, err := openflow.ParsePacketOut("in_port=1,packet="+hex.EncodeToString(b)+",actions="+actions, nil)
		if err != nil {
			t.Fatal(err)
		}
		return ofproto.BundleItem{Frame: &out}
	}
	apply := func(items ...ofproto.BundleItem) (int, error) {
		return change.Result(&f.Configuration, func(tx *change.Tx) (int, error) { return f.P.First().ApplyBundle(tx, items) })
	}
	failed, err := apply(flow(openflow.Add, "table=1,in_port=1,actions=drop"), flow(openflow.Add, "table=2,actions=drop"),
		frame("resubmit(,1),resubmit(,2),resubmit(,3)"), flow(openflow.Delete, "table=2"), flow(openflow.Add, "table=3,dl_type=0x88b5,actions=drop"))
	if err != nil {
		t.Fatal(failed, err)
	}
	f.Want("in_port=p1", "1/60")
	f.Want("dl_type=0x88b5", "0/0")
	if n := len(f.Rules("")); n != 2 {
		t.Errorf("%d flows, want 2", n)
	}
	loop := frame("resubmit(,4)")
	failed, err = apply(flow(openflow.Add, "table=4,actions=resubmit(,4)"), loop)
	if err == nil || failed != 1 || len(f.Rules("table=4")) != 0 {
		t.Errorf("a bundle with a loop: change %d, %v", failed, err)
	}
}

// fullDisk is a store that can refuse transactions.
type fullDisk struct {
	pipeline.Store
	refused error
}

func (d *fullDisk) ChangeFlows(tx *change.Tx, save iter.Seq[store.Flow], remove []uint32) {
	if d.refused == nil {
		d.Store.ChangeFlows(tx, save, remove)
		return
	}
	tx.At(change.Save, d, func() error { return d.refused })
}

func (d *fullDisk) ReplaceGroups(tx *change.Tx, groups, meters map[store.Key]string) {
	if d.refused == nil {
		d.Store.ReplaceGroups(tx, groups, meters)
	}
}

// A bundle that cannot be saved stays in force, but nothing of it is in the state file.
func TestUnsavedBundle(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	w := &fullDisk{Store: f.Store}
	tx := f.Configuration.Begin()
	f.Store = w
	tx.Commit()
	bundle := func(group string, flows ...string) error {
		t.Helper()
		mod, err := openflow.ParseGroupMod(group, openflow.GroupAdd, nil)
		if err != nil {
			t.Fatal(err)
		}
		items := []ofproto.BundleItem{{Group: &mod}}
		for _, text := range flows {
			flow, err := openflow.ParseFlowMod(text, openflow.Add, nil)
			if err != nil {
				t.Fatal(err)
			}
			items = append(items, ofproto.BundleItem{Flow: &flow})
		}
		return f.Configuration.Update(func(tx *change.Tx) error {
			_, err := f.P.First().ApplyBundle(tx, items)
			return err
		})
	}
	saved := func() (groups, flows int) {
		t.Helper()
		state, err := f.Disk.Load()
		if err != nil {
			t.Fatal(err)
		}
		return len(state.Groups), len(state.Flows)
	}
	if err := bundle("group_id=1,type=all,bucket=output:1", "in_port=1,actions=group:1", "in_port=2,actions=group:1"); err != nil {
		t.Error(err)
	}
	if groups, flows := saved(); groups != 1 || flows != 2 {
		t.Errorf("the state file has %d groups and %d flows, want 1 and 2", groups, flows)
	}
	w.refused = errors.New("the disk is full")
	if err := bundle("group_id=2,type=all,bucket=output:1", "in_port=3,actions=group:2"); !errors.As(err, new(*change.UnsavedError)) || !errors.Is(err, w.refused) {
		t.Errorf("a refused write: %v", err)
	}
	if n := len(f.Rules("")); n != 3 {
		t.Errorf("%d flows are in force, want 3", n)
	}
	if groups, flows := saved(); groups != 1 || flows != 2 {
		t.Errorf("after a refused write, the state file has %d groups and %d flows, want 1 and 2", groups, flows)
	}
}
