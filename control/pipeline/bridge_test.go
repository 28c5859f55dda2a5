// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"errors"
	"strings"
	"testing"

	"weft/control/change"
	"weft/control/pipeline"
	"weft/control/pipeline/pipelinetest"
	"weft/control/store"
	"weft/control/workers/workertest"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// bridgesRig has the ports 1 and 3 in the first bridge, and 2 and 4 in the second. 3 and 4
// are patch ports.
func bridgesRig(t *testing.T) (f *pipelinetest.Rig, second *pipeline.Bridge) {
	f = pipelinetest.New(t)
	tx := f.Configuration.Begin()
	defer tx.Commit()
	f.Disk.SaveBridge(tx, store.Bridge{Number: 1, Name: "second"})
	second = f.P.AddBridge(tx, 1, "br1")
	f.Infos = []xlate.PortInfo{
		{No: 1, Name: "p1"}, {No: 2, Name: "p2", Bridge: 1},
		{No: 3, Name: "p3", Kind: xlate.PortPatch, Peer: 4}, {No: 4, Name: "p4", Kind: xlate.PortPatch, Peer: 3, Bridge: 1},
	}
	f.SetView(tx)
	f.P.PortsChanged(tx)
	return f, second
}

// mod applies a change of flows in a bridge.
func mod(t *testing.T, f *pipelinetest.Rig, b *pipeline.Bridge, command openflow.Command, text string) {
	t.Helper()
	tx := f.Configuration.Begin()
	defer tx.Commit()
	m, err := openflow.ParseFlowMod(text, command, b.View())
	if err == nil {
		_, err = b.Apply(tx, []openflow.FlowMod{m})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func packetsOf(f *pipelinetest.Rig, b *pipeline.Bridge) (list []uint64) {
	tx := f.Configuration.Begin()
	defer tx.Commit()
	f.P.PullCounts(tx)
	b.Read(func(tables *ofproto.Tables) {
		for _, r := range tables.Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll}) {
			list = append(list, r.Packets)
		}
	})
	return list
}

// A frame counts for the flows of both bridges and for the patch ports. A change of
// the second bridge's flows removes the frame's megaflow. Flows of the bridges, and their counts, survive the
// end of control.
func TestBridgesSurviveARestart(t *testing.T) {
	f, second := bridgesRig(t)
	mod(t, f, f.P.First(), openflow.Add, "in_port=p1,actions=p3")
	mod(t, f, second, openflow.Add, "in_port=p4,actions=p2")
	send := func(n int) {
		for range n {
			f.Worker().Frame(workertest.UDPKey(1, 1, 2, 9), 100)
			f.Settle()
		}
	}
	check := func(phase string, want uint64, flows int) {
		t.Helper()
		for _, b := range []*pipeline.Bridge{f.P.First(), second} {
			got := packetsOf(f, b)
			if len(got) != flows || flows > 0 && got[0] != want {
				t.Errorf("%s: flows of bridge %d have %v packets, want %d", phase, b.Number(), got, want)
			}
		}
	}
	send(3)
	check("at first", 3, 1)
	if out, in := &f.P.Region().Ports[3], &f.P.Region().Ports[4]; out.TxPackets != 3 || in.RxPackets != 3 || in.RxBytes != 300 {
		t.Errorf("patch ports: %d sent, %d received of %d bytes", out.TxPackets, in.RxPackets, in.RxBytes)
	}
	f.Die()
	f.Begin()
	second = f.P.Other(1)
	send(2)
	check("after a restart", 5, 1)
	if n := f.P.Counts().Megaflows; n != 1 {
		t.Fatalf("%d megaflows", n)
	}
	mod(t, f, second, openflow.Delete, "in_port=p4")
	if n := f.P.Counts().Megaflows; n != 0 {
		t.Errorf("%d megaflows use the removed flow", n)
	}
	one, err := openflow.ParseFlowMod("priority=3,actions=drop", openflow.Add, nil)
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("the disk is full")
	remove := func(saved error) error {
		return f.Configuration.Update(func(tx *change.Tx) error {
			f.Infos = f.Infos[:1]
			f.SetView(tx)
			f.Disk.DeleteBridge(tx, 1, f.P.RemoveBridge(tx, second))
			if _, err := second.Apply(tx, []openflow.FlowMod{one}); err == nil || !strings.Contains(err.Error(), "the bridge has been deleted") {
				t.Errorf("a removed bridge takes a flow: %v", err)
			}
			return saved
		})
	}
	if err := remove(full); err != full {
		t.Fatal(err)
	}
	err = f.Configuration.Update(func(tx *change.Tx) error { _, err := second.Apply(tx, []openflow.FlowMod{one}); return err })
	if err != nil || f.P.Other(1) != second || second.Flows() != 1 {
		t.Errorf("a bridge that the state file has kept takes no flow: %v", err)
	}
	if err := remove(nil); err != nil || len(f.P.Bridges()) != 1 || second.Flows() != 0 {
		t.Errorf("a deleted bridge is there: %v", err)
	}
	if saved, err := f.Disk.Load(); err != nil || len(saved.Bridges) != 0 || len(saved.Flows) != 1 {
		t.Errorf("after del-br: %+v, %v", saved, err)
	}
}
