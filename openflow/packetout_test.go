// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"strings"
	"testing"
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
		if got := po.Flow.Key().InPort(); got != c.inPort {
			t.Errorf("%s: unexpected in_port %d", c.text, got)
		}
		if got := WholeField(FReg).Get(&po.Flow)[1]; got != c.reg0 {
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
	// Only a packet-out may output to TABLE.
	if _, err := ParseFlowMod("actions=TABLE", Add, nil); err == nil {
		t.Error("a flow with output to TABLE was accepted")
	}
}
