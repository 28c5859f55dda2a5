// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/packet"
)

const outFrame = "ffffffffffff0200000000010800"

// A packet-out affects only its frame. Each output to TABLE runs the flow tables.
func TestExecute(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{})
	var mods []openflow.FlowMod
	for _, text := range []string{"in_port=1,actions=output:2", "reg0=9,priority=40000,actions=output:3", "table=4,actions=output:4"} {
		m, err := openflow.ParseFlowMod(text, openflow.Add, nil)
		if err != nil {
			t.Fatal(err)
		}
		mods = append(mods, m)
	}
	if _, err := p.Apply(mods, 0); err != nil {
		t.Fatal(err)
	}
	env := newEnv()
	env.macs.Learn(fdb.Learn{Valid: true, Port: 2, MAC: 0x020000000002}, 0)
	const flooded = "1,2,4,tunnel(template=199659349,vni=55)"
	for _, c := range []struct{ text, want string }{
		{"in_port=1,packet=" + outFrame + ",actions=TABLE", "2"},
		{"in_port=1,packet=" + outFrame + ",actions=TABLE,TABLE,3", "2,2,3"},
		{"in_port=1,reg0=9,packet=" + outFrame + ",actions=TABLE", "3"},
		{"in_port=2,packet=" + outFrame + ",actions=load:9->NXM_NX_REG0[],clone(TABLE),resubmit(,4)", "3,4"},
		{"packet=" + outFrame + ",actions=TABLE", "drop(table-miss)"}, // in_port is CONTROLLER
		{"in_port=2,packet=" + outFrame + ",actions=2,in_port", "2"},
		{"packet=" + outFrame + ",actions=drop", "drop(flow-drop)"},
		{"in_port=none,packet=" + outFrame + ",actions=normal", flooded},
		{"in_port=controller,packet=" + outFrame + ",actions=normal", flooded},
		{"packet=020000000009" + outFrame[12:] + ",actions=normal", flooded}, // unknown unicast
		{"packet=020000000002" + outFrame[12:] + ",actions=normal", "2"},
		{"packet=0180c2000000" + outFrame[12:] + ",actions=normal", flooded},
		{"in_port=local,packet=" + outFrame + ",actions=normal", "drop(no-port)"},
		{"in_port=77,packet=" + outFrame + ",actions=normal", "drop(no-port)"},
	} {
		po, err := openflow.ParsePacketOut(c.text, nil)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		for _, octet := range po.Frame[:6] { // this test adds the frame's own fields, as the callers of Execute do
			po.Flow[flowtable.WEthDst] = po.Flow[flowtable.WEthDst]<<8 | uint64(octet)<<16
		}
		got, err := Execute(p, po.Actions, &po.Flow, env)
		if learnOf(&got).Valid {
			t.Errorf("%s: normal learns %+v from a packet-out", c.text, learnOf(&got))
		}
		if text := openflow.FormatDatapathActions(got.Actions, nil); err != nil || text != c.want {
			t.Errorf("%s: %v, %s, want %s", c.text, err, text, c.want)
		}
	}
	for _, text := range []string{"group:7", "meter:7,2", "clone(group:7)"} {
		po, err := openflow.ParsePacketOut("packet="+outFrame+",actions="+text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Execute(p, po.Actions, &po.Flow, newEnv()); err == nil || !strings.Contains(err.Error(), ":7") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// output:FIELD runs the tables if the field has the 16-bit number of the port TABLE.
// OpenFlow 1.1's 32-bit number does not run them. An endless repetition ends with drop
// reason DropLoop.
func TestOutputOfAFieldToTheTables(t *testing.T) {
	p := pipelineOf(t, "in_port=1,actions=output:2", "in_port=3,actions=load:0xfff9->reg0[0..15],output:reg0[0..15]",
		"table=5,actions=load:0xfff9->reg0,output:reg0", "table=6,actions=load:0xfffffff9->reg0,output:reg0",
		"table=7,actions=load:0xfffd->reg0,output:reg0")
	for text, want := range map[string]string{
		"in_port=1,packet=" + outFrame + ",actions=resubmit(,5)": "2",
		"in_port=1,packet=" + outFrame + ",actions=resubmit(,6)": "drop(flow-drop)",
		"in_port=1,packet=" + outFrame + ",actions=resubmit(,7)": "drop(flow-drop)", // only the action controller sends to CONTROLLER
		"in_port=3,packet=" + outFrame + ",actions=TABLE":        "drop(loop)",
	} {
		po, err := openflow.ParsePacketOut(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := Execute(p, po.Actions, &po.Flow, newEnv())
		if got := openflow.FormatDatapathActions(tr.Actions, nil); err != nil || got != want {
			t.Errorf("%s: %v, %s, want %s", text, err, got, want)
		}
	}
	k := keyOfText(t, "in_port=3")
	if tr := Translate(p, &k, newEnv()); tr.Drop != packet.DropLoop {
		t.Errorf("a flow that runs the tables again: unexpected drop reason %s", tr.Drop)
	}
}

func FuzzPacketOut(f *testing.F) {
	f.Add("in_port=1,reg0=3,packet=" + outFrame + ",actions=TABLE,resubmit(2,3),clone(2)")
	f.Fuzz(func(t *testing.T, text string) {
		po, err := openflow.ParsePacketOut(text, nil)
		if err != nil {
			return
		}
		again, err := openflow.ParsePacketOut("packet="+outFrame+",actions="+openflow.FormatActions(po.Actions, nil), nil)
		if err != nil || openflow.FormatActions(again.Actions, nil) != openflow.FormatActions(po.Actions, nil) {
			t.Fatalf("%q: %v", openflow.FormatActions(po.Actions, nil), err)
		}
	})
}
