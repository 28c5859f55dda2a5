// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"encoding/hex"
	"testing"
)

// dec_ttl keeps the ids of its controllers in text and on the wire. The encoding is Open vSwitch's: Nicira's
// action with ids if there are any, else the action of the version.
func TestDecTTLKeepsItsIDs(t *testing.T) {
	for _, c := range []struct {
		text    string
		version Version
		wire    string
	}{
		{"dec_ttl", Version10, "ffff001000002320" + "0012000000000000"},
		{"dec_ttl", Version15, "0018000800000000"},
		{"dec_ttl(0)", Version13, "ffff001800002320" + "0015000100000000" + "0000000000000000"},
		{"dec_ttl(1,65535)", Version10, "ffff001800002320" + "0015000200000000" + "0001ffff00000000"},
		{"dec_ttl(1,65535)", Version15, "ffff001800002320" + "0015000200000000" + "0001ffff00000000"},
	} {
		mod, err := ParseFlowMod("ip,actions="+c.text, Add, nil)
		if err != nil {
			t.Fatal(err)
		}
		wire := AppendActions(nil, mod.Actions, nil, c.version, nil)
		if got := hex.EncodeToString(wire); got != c.wire {
			t.Errorf("%s in version %d\nencodes as %s\nwant       %s", c.text, c.version, got, c.wire)
		}
		back, err := DecodeActions(wire, ActionContext{Version: c.version, Table: TableAll})
		if err != nil {
			t.Fatal(err)
		}
		if text := FormatActions(back, nil); text != c.text || FormatActions(mod.Actions, nil) != c.text {
			t.Errorf("%s is %s, after encoding %s", c.text, FormatActions(mod.Actions, nil), text)
		}
	}
	for _, bad := range []string{
		"ffff001800002320" + "0015000500000000" + "0001000200030004", // an id is missing
		"ffff001800002320" + "0015000100000001" + "0001000000000000", // a reserved byte is set
	} {
		wire, err := hex.DecodeString(bad)
		if err != nil {
			t.Fatal(err)
		}
		if list, err := DecodeActions(wire, ActionContext{Version: Version13, Table: TableAll}); err == nil {
			t.Errorf("%s is decoded as %s", bad, FormatActions(list, nil))
		}
	}
}
