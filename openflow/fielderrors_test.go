// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"math/big"
	"strings"
	"testing"
)

var whatIsWrong = map[format][]struct{ value, expected string }{
	asPort:     {{"nosuch", "name of a port"}, {"70000", "0 to 65535"}, {`"nosuch"`, "name of a port"}},
	asFrag:     {{"maybe", "not_later"}, {"1", "not_later"}},
	asTCPFlags: {{"+syn-frob", "TCP flags"}, {"0x1000", "12 bits"}, {"1/x", "TCP flags"}, {"+syn+syn", "TCP flags"}},
	asTunFlags: {{"+frob", "tun_flags"}, {"2", "tun_flags"}},
	asCTState:  {{"+frob", "ct_state"}, {"new|frob", "ct_state"}},
	asEthernet: {{"nosuch", "Ethernet address"}, {"02:00:00:00:00", "Ethernet address"}, {"02:00:00:00:00:01/x", "Ethernet address"}, {"5", "Ethernet address"}},
	asIPv4:     {{"nosuch", "IPv4 address"}, {"10.0.0", "IPv4 address"}, {"10.0.0.1/33", "from 0 to 32"}, {"10.0.0.1/255.0", "IPv4 address"}, {"::1", "IPv4 address"}},
	asIPv6:     {{"nosuch", "IPv6 address"}, {"10.0.0.1", "IPv6 address"}, {"::1/129", "from 0 to 128"}, {"::1/x", "IPv6 address"}},
	asDecimal:  {{"nosuch", "a number"}, {"1/x", "a number"}},
	asHex:      {{"nosuch", "a number"}, {"1/x", "a number"}},
	asHex0:     {{"nosuch", "a number"}, {"1/x", "a number"}},
	asHex4:     {{"nosuch", "a number"}, {"1/x", "a number"}},
	asHex5:     {{"nosuch", "a number"}, {"1/x", "a number"}},
}

// The error of an invalid field value names the value. If several fields share the text
// format, the error also names the field.
func TestErrorsOfEveryField(t *testing.T) {
	check := func(text, word, expected, name string) {
		t.Helper()
		_, err := ParseFlowMod(text, Add, nil)
		pe, ok := err.(*ParseError)
		if !ok || pe.Word != word || !strings.Contains(pe.Expected, expected) || !strings.Contains(pe.Expected, name) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want %q named, expected ...%s...%s", text, err, word, expected, name)
		}
	}
	for id := FTunID; id < FTunMetadata; id++ {
		f := &fields[id]
		if len(whatIsWrong[f.format]) == 0 {
			t.Errorf("%s: whatIsWrong has no invalid values for its format", f.name)
		}
		for _, name := range []string{f.name, f.alias} {
			if name == "" {
				continue
			}
			named := f.name
			if f.format == asPort || f.format == asFrag {
				named = "" // only one field has these keywords, so the error need not name the field
			}
			for _, w := range whatIsWrong[f.format] {
				said := named
				if strings.Contains(w.expected, "from 0 to") {
					said = ""
				}
				check(fmt.Sprintf("%s=%s,actions=drop", name, w.value), w.value, w.expected, said)
			}
			switch f.format {
			case asDecimal, asHex, asHex0, asHex4, asHex5:
				wide := new(big.Int).Lsh(big.NewInt(1), 8*uint(f.bytes)).String()
				check(fmt.Sprintf("%s=%s,actions=drop", name, wide), wide, fmt.Sprintf("at most %d bits", 8*f.bytes), f.name)
				if !f.maskable {
					check(fmt.Sprintf("%s=1/1,actions=drop", name), "1/1", "without a mask", name)
				}
			case asEthernet, asIPv4, asIPv6, asPort:
				check(fmt.Sprintf("%s=,actions=drop", name), name+"=", name+"=VALUE", "")
			}
		}
	}
	// Only deletes and dumps accept out_port and out_group.
	for text, want := range map[string]string{"out_port=nosuch": "nosuch", "out_group=x": "x", "out_group=-1": "-1"} {
		_, err := ParseFilter(text, nil)
		if pe, ok := err.(*ParseError); !ok || pe.Word != want {
			t.Errorf("%s: unexpected error %v", text, err)
		}
	}
	check("out_group=5,actions=drop", "out_group", "match field", "")
}

// An action on a field without an NXM or OXM name is refused. For dl_vlan and
// dl_vlan_pcp the error names the VLAN field to use.
func TestErrorOfFieldWithoutOXM(t *testing.T) {
	other := FTunSrc
	was := fields[other].oxm
	fields[other].oxm = nil
	t.Cleanup(func() { fields[other].oxm = was })
	for id, expected := range map[FieldID]string{
		FDLVLAN: "vlan_vid or vlan_tci[0..11]", FDLVLANPCP: "vlan_pcp or vlan_tci[13..15]", other: "NXM or OXM name",
	} {
		name := fields[id].name
		_, err := ParseFlowMod("actions=move:"+name+"->reg0["+fmt.Sprintf("0..%d", fields[id].bits-1)+"]", Add, nil)
		pe, ok := err.(*ParseError)
		if !ok || !strings.Contains(pe.Expected, expected) || !strings.Contains(pe.Expected, name) {
			t.Errorf("move of %s: %v; want an error that names it and says %q", name, err, expected)
		}
		if id == other && ok && strings.Contains(pe.Expected, "vlan") {
			t.Errorf("move of %s: %v; want no hint about VLAN", name, err)
		}
	}
}
