// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow/fdb"
	"weft/packet"
)

const outFrame = "ffffffffffff0200000000010800"

func TestParsePacketOut(t *testing.T) {
	for _, c := range []struct {
		text    string
		inPort  uint32
		reg0    uint64
		actions string
	}{
		{"in_port=1,packet=" + outFrame + ",actions=TABLE", 1, 0, "TABLE"},
		{"packet=" + outFrame + " actions=2", PortController, 0, "output:2"},
		{"in_port=local,reg0=3,metadata=5,tun_id=7,packet=" + outFrame + ",actions=clone(table),resubmit(,3)", PortLocal, 3, "clone(TABLE),resubmit(,3)"},
		{"in_port=any,packet=" + outFrame + ",actions=drop", PortNone, 0, "drop"},
	} {
		po, err := ParsePacketOut(c.text, nil)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got := uint32(po.Flow[flowtable.WPort] >> 32); got != c.inPort {
			t.Errorf("%s: unexpected in_port %d", c.text, got)
		}
		if got := wholeField(FReg).get(&po.Flow)[1]; got != c.reg0 {
			t.Errorf("%s: unexpected reg0 %d", c.text, got)
		}
		if got := FormatActions(po.Actions, nil); got != c.actions || len(po.Frame) != 14 {
			t.Errorf("%s: unexpected frame of %d bytes or actions %s", c.text, len(po.Frame), got)
		}
	}
}

func TestPacketOutErrors(t *testing.T) {
	const frame = "packet=" + outFrame
	for _, c := range []struct{ text, word string }{
		{"in_port=1," + frame, "actions="},
		{"in_port=1," + frame + ",actions", "actions="},
		{"in_port=1,actions=2", "packet=HEX"},
		{"packet=,actions=2", "14 to"},
		{"packet=0g,actions=2", "not \"g\" as digit 2"},
		{"packet=" + outFrame + "\x00\n,actions=2", `not "\x00" as digit 29`},
		{"packet=" + outFrame + strings.Repeat("0", 20000) + "äa,actions=2", "not \"ä\" as digit 20029"},
		{"packet=" + outFrame + "0,actions=2", "pairs of hexadecimal digits, not 29"},
		{frame + "," + frame + ",actions=2", "packet once"},
		{"packet=ffffffffffff02000000000108,actions=2", "14 to"},
		{"in_port=flood," + frame + ",actions=2", "flood"},
		{"in_port=vm9," + frame + ",actions=2", "vm9"},
		{"dl_src=02:00:00:00:00:01," + frame + ",actions=2", "dl_src"},
		{"ct_state=trk," + frame + ",actions=2", "ct_state"},
		{"frob=1," + frame + ",actions=2", "frob"},
		{"reg0=x," + frame + ",actions=2", "reg0"},
		{frame + ",actions=goto_table:1", "goto_table:1"},
		{frame + ",actions=write_metadata:3,table", "write_metadata"},
		{frame + ",actions=write_actions(2)", "write_actions"},
		{frame + ",actions=clear_actions", "clear_actions"},
		{frame + ",actions=frob", "frob"},
	} {
		_, err := ParsePacketOut(c.text, nil)
		if err == nil || !strings.Contains(err.Error(), c.word) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 200 {
			t.Errorf("%.200s: %v, which does not name %q", c.text, err, c.word)
		}
	}
	// packet-out alone may output to TABLE.
	if _, err := ParseFlowMod("actions=TABLE", Add, nil); err == nil {
		t.Error("a flow with output to TABLE was accepted")
	}
}

// A packet-out affects only its frame. Each output to TABLE runs the flow tables.
func TestExecute(t *testing.T) {
	p := NewPipeline(Limits{})
	var mods []FlowMod
	for _, text := range []string{"in_port=1,actions=output:2", "reg0=9,priority=40000,actions=output:3", "table=4,actions=output:4"} {
		m, err := ParseFlowMod(text, Add, nil)
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
		po, err := ParsePacketOut(c.text, nil)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		for _, octet := range po.Frame[:6] { // the caller adds the frame's own fields
			po.Flow[flowtable.WEthDst] = po.Flow[flowtable.WEthDst]<<8 | uint64(octet)<<16
		}
		got, err := Execute(p, po.Actions, &po.Flow, env)
		if learnOf(&got).Valid {
			t.Errorf("%s: normal learns %+v from a packet-out", c.text, learnOf(&got))
		}
		if text := FormatDatapathActions(got.Actions, nil); err != nil || text != c.want {
			t.Errorf("%s: %v, %s, want %s", c.text, err, text, c.want)
		}
	}
	for _, text := range []string{"group:7", "meter:7,2", "clone(group:7)"} {
		po, err := ParsePacketOut("packet="+outFrame+",actions="+text, nil)
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
		po, err := ParsePacketOut(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := Execute(p, po.Actions, &po.Flow, newEnv())
		if got := FormatDatapathActions(tr.Actions, nil); err != nil || got != want {
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
		po, err := ParsePacketOut(text, nil)
		if err != nil {
			return
		}
		again, err := ParsePacketOut("packet="+outFrame+",actions="+FormatActions(po.Actions, nil), nil)
		if err != nil || FormatActions(again.Actions, nil) != FormatActions(po.Actions, nil) {
			t.Fatalf("%q: %v", FormatActions(po.Actions, nil), err)
		}
	})
}
