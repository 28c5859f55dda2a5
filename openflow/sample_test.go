// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"encoding/hex"
	"strings"
	"testing"
)

// A sample action whose domain or point is a field is the same after formatting and parsing, and after
// encoding and decoding. The encoding is NXAST_SAMPLE4 of Open vSwitch 3.4.
func TestSampleOfFields(t *testing.T) {
	for _, c := range []struct{ text, wire string }{
		{"sample(probability=65535,collector_set_id=42,obs_domain_id=NXM_NX_REG0[0..15],obs_point_id=NXM_NX_REG1[])",
			"ffff0028000023200033ffff0000002a" + "00010004000f0000" + "00010204001f0000" + "ffff000000000000"},
		{"sample(probability=1,collector_set_id=0,obs_domain_id=7,obs_point_id=NXM_OF_ETH_SRC[8..15],sampling_port=2,egress)",
			"ffff0028000023200033000100000000" + "0000000000000007" + "0000040602070000" + "0002020000000000"},
	} {
		mod, err := ParseFlowMod("actions="+c.text, Add, nil)
		if err != nil {
			t.Fatal(err)
		}
		wire := AppendActions(nil, mod.Actions, nil, Version13, nil)
		if got := hex.EncodeToString(wire); got != c.wire {
			t.Errorf("%s\nencodes as %s\nwant       %s", c.text, got, c.wire)
		}
		back, err := DecodeActions(wire, ActionContext{Version: Version13, Table: TableAll})
		if err != nil {
			t.Fatal(err)
		}
		if text := FormatActions(back, nil); text != FormatActions(mod.Actions, nil) || !strings.HasPrefix(text, "sample(probability=") {
			t.Errorf("%s\nreturns as %s", c.text, text)
		}
		// The decoder refuses a sub-field of more than 32 bits.
		wire[16+5] = 0x3f
		wire[24+5] = 0x3f
		if _, err := DecodeActions(wire, ActionContext{Version: Version13, Table: TableAll}); err == nil {
			t.Errorf("%s: 64 bits of a field are accepted", c.text)
		}
	}
}
