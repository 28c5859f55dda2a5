// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"weft/openflow"
	"weft/openflow/ofproto"
)

// A frame of a bundle goes through the flows that the bundle has added before it. It counts
// for those of these flows that the bundle leaves. A refused frame refuses the bundle.
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
		tx := f.Configuration.Begin()
		defer tx.Commit()
		return f.P.First().ApplyBundle(items)
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
