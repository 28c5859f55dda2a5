// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"os/exec"
	"strings"
	"testing"
)

// wideLoads are loads of more than 64 bits, each with the text that ovs-ofctl shows for it.
var wideLoads = []struct{ text, shown string }{
	{"load:0x123456789abcdef0123456789abcdef0->NXM_NX_XXREG0[]", "load:0x123456789abcdef0->NXM_NX_XXREG0[0..63],load:0x123456789abcdef0->NXM_NX_XXREG0[64..127]"},
	{"load:5->xxreg1", "load:0x5->NXM_NX_XXREG1[0..63],load:0->NXM_NX_XXREG1[64..127]"},
	{"load:0xfedcba9876543210f->xxreg0[0..67]", "load:0xedcba9876543210f->NXM_NX_XXREG0[0..63],load:0xf->NXM_NX_XXREG0[64..67]"},
	{"load:5->xxreg0[60..70]", "load:0x5->NXM_NX_XXREG0[60..70]"},
	{"learn(table=1,load:0x123456789abcdef0123456789abcdef0->NXM_NX_XXREG0[])", "learn(table=1,load:0x123456789abcdef0123456789abcdef0->NXM_NX_XXREG0[])"},
}

// A load of more than 64 bits becomes two loads, in text and on the wire.
func TestWideLoads(t *testing.T) {
	for _, l := range wideLoads {
		mod, err := ParseFlowMod("actions="+l.text, Add, nil)
		if err != nil {
			t.Errorf("%s: %v", l.text, err)
			continue
		}
		if got := FormatActions(mod.Actions, nil); got != l.shown {
			t.Errorf("%s\n got %s\nwant %s", l.text, got, l.shown)
		}
		for _, v := range versions {
			checkActions(t, l.text, &mod, v)
		}
		if path, err := exec.LookPath("ovs-ofctl"); err == nil {
			out, err := exec.Command(path, "parse-flow", "actions="+l.text).CombinedOutput()
			if !strings.HasSuffix(strings.TrimSpace(string(out)), "actions="+l.shown) {
				t.Errorf("ovs-ofctl %s: %v: %s; want %s", l.text, err, out, l.shown)
			}
		}
	}
	wrong := map[string]string{
		"load:0x1ffffffffffffffff->xxreg0[0..63]":               "64 bits",
		"load:0x123456789abcdef0123456789abcdef01->xxreg0":      "128 bits",
		"learn(load:0x123456789abcdef0123456789abcdef0->xreg0)": "64 bits",
	}
	for text, hint := range wrong {
		if _, err := ParseFlowMod("actions="+text, Add, nil); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s: %v; want an error with %q", text, err, hint)
		}
	}
}

// A load of 128 bits in a learn action keeps all its bits in the encoded message.
func TestWideLearnedLoadOnTheWire(t *testing.T) {
	whole := Action{Kind: ActLoad, Dst: WholeField(FXXReg), Value: Value128{1, 2}}
	m := &Match{}
	for _, v := range []Version{Version10, Version13} {
		back, err := DecodeActions(AppendActions(nil, []Action{whole}, m, v, nil), ActionContext{Version: v, Match: m, Table: TableAll})
		if got := FormatActions(back, nil); err != nil || got != "load:0x2->NXM_NX_XXREG0[0..63],load:0x1->NXM_NX_XXREG0[64..127]" {
			t.Errorf("version %d: %s, %v", v, got, err)
		}
	}
}
