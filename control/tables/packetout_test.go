// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"weft/api"
	"weft/control/pipeline"
	"weft/control/usererr"
	"weft/control/workers"
	"weft/internal/waitfor"
	"weft/openflow"
	"weft/openflow/ofproto"
)

func outText(actions string) string {
	frame := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0},
		0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
		0, 9, 0, 9, 0, 8, 0, 0)
	return "in_port=1,packet=" + hex.EncodeToString(frame) + ",actions=" + actions
}

func (f *rig) flowsOf(match string) []api.Flow {
	f.T.Helper()
	flows, err := f.tables().DumpFlows(match, pipeline.ByName)
	if err != nil {
		f.T.Fatal(err)
	}
	return flows
}

// A packet-out to a dying engine fails, and the error tells the operator what to do. Nothing is
// counted or learned.
func TestPacketOutWithoutEngine(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	f.Add("table=1,actions=normal", "table=2,actions=learn(table=10,eth_dst=eth_src,output:in_port),p2")
	refused := func(request string, err error) {
		t.Helper()
		if !errors.Is(err, workers.ErrGone) || !strings.Contains(err.Error(), "try again") {
			t.Errorf("%s: %v", request, err)
		}
		for _, fl := range f.flowsOf("") {
			if fl.Packets != 0 || fl.Table == 10 {
				t.Errorf("%s: %s", request, fl.Line)
			}
		}
		if n := f.P.Counts().MACs; n != 0 {
			t.Errorf("%s: %d addresses learned", request, n)
		}
	}

	// the engine dies while the packet-out waits
	present := f.P.Workers
	w := present()
	f.Worker().Stalled.Store(true)
	ended := make(chan error)
	go func() {
		_, err := f.tables().PacketOut(outText("resubmit(,1)"))
		ended <- err
	}()
	f.Changing()
	f.Kill()
	refused("the engine dies meanwhile", <-ended)
	waitfor.True(t, "another engine", func() bool { return present() != w })

	// No engine runs from the start.
	f.WithoutEngine(func() {
		for _, table := range []string{"resubmit(,1)", "resubmit(,2)"} {
			_, err := f.tables().PacketOut(outText(table))
			refused(table+" without an engine", err)
		}
	})
	if _, err := f.tables().PacketOut(outText("resubmit(,2)")); err != nil || len(f.flowsOf("table=10")) != 1 {
		t.Errorf("with a new engine: %v", err)
	}
	if _, err := f.tables().PacketOut(outText("resubmit(,1)")); err != nil || f.P.Counts().MACs != 1 {
		t.Errorf("with a new engine, normal: %v", err)
	}
}

// A refused packet-out learns nothing.
func TestRefusedPacketOutTeachesNothing(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	f.Add("table=9,actions=resubmit(,9)")
	_, err := f.tables().PacketOut(outText("learn(table=10,eth_dst=eth_src,output:in_port),resubmit(,9)"))
	var input *usererr.Error
	if !errors.As(err, &input) || !strings.Contains(err.Error(), "actions") {
		t.Errorf("a loop: %v", err)
	}
	if flows := f.flowsOf("table=10"); len(flows) != 0 {
		t.Errorf("learned: %s", flows[0].Line)
	}
}

// A learned flow's hard timeout restarts with each frame or packet-out that would learn
// the flow.
func TestPacketOutRefreshesLearnedFlows(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	learned := func() *ofproto.Rule {
		t.Helper()
		if _, err := f.tables().PacketOut(outText("learn(table=10,hard_timeout=600,eth_dst=eth_src,output:in_port),p2")); err != nil {
			t.Fatal(err)
		}
		tx := f.Configuration.Begin()
		defer tx.Commit()
		rules := f.P.Select(tx, &openflow.FlowMod{Command: openflow.Delete, Table: 10})
		if len(rules) != 1 {
			t.Fatalf("%d flows learned", len(rules))
		}
		return rules[0]
	}
	r, before := learned(), uint64(0)
	f.P.Read(func(*ofproto.Tables) {
		r.ModifiedNS -= 500e9 // the last modification is now 500 s older
		before = r.ModifiedNS
	})
	again := learned()
	f.P.Read(func(*ofproto.Tables) {
		if again != r || r.ModifiedNS < before+500e9 {
			t.Errorf("a flow taught again after 500 s is refreshed by %d ns", r.ModifiedNS-before)
		}
	})
}
