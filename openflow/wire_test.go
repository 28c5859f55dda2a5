// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"weft/flowtable"
)

var versions = []Version{Version10, Version13, Version14, Version15}

// Every field has a header on the wire. A match on the field is the same after encoding and decoding.
func TestEveryFieldHasAHeader(t *testing.T) {
	for id := FTunID; id < fieldCount; id++ {
		f := &fields[id]
		if len(f.oxm) == 0 {
			continue
		}
		for _, v := range versions {
			h := id.header(v)
			if got, right := fieldOf(h); got != id && !(id == FInPort && got == FInPortOXM) || !right || h.length != f.bytes {
				t.Errorf("%s, version %d: header %+v leads to %s", f.name, v, h, got)
			}
		}
	}
	names := 1 // counts ONF's header of tcp_flags, which has no name
	for i := range fields {
		names += len(fields[i].oxm)
	}
	if len(fieldOfHeader) != names {
		t.Errorf("%d headers for %d names: two names share a header", len(fieldOfHeader), names)
	}
}

// The match and the actions of each flow in testdata are the same after encoding and decoding in each version
// of OpenFlow.
func TestWireRoundTrip(t *testing.T) {
	count := 0
	for _, line := range corpus(t) {
		mod, err := ParseFlowMod(line, Add, portNames())
		if err != nil {
			continue
		}
		count++
		if strings.Contains(line, "->NXM_OF_ARP_OP") {
			continue // OpenFlow 1.5 encodes load as set_field, whose decoder refuses an arp_op above 255
		}
		m := mod.Match.Unpack()
		for _, v := range versions {
			wire := AppendMatch(nil, &m, v, testTLVs)
			back, err := DecodeMatch(wire, testTLVs)
			if v != Version10 {
				m = onlyVLANFields(m)
			}
			if err != nil || back != m {
				t.Errorf("%s\nversion %d: match %s, want %s: %v", line, v, FormatMatch(&back, WithTLVs(nil, testTLVs)), FormatMatch(&m, WithTLVs(nil, testTLVs)), err)
				continue
			}
			checkActions(t, line, &mod, v)
		}
	}
	if count < 100 {
		t.Errorf("only %d flows", count)
	}
}

// onlyVLANFields returns the match without the VLAN bits that OXM cannot express: the priority of a tag if
// the match does not require a tag.
func onlyVLANFields(m Match) Match {
	const word = flowtable.WEthSrc
	if m.Value[word]&flowtable.VLANPresent == 0 {
		m.Mask[word] &^= flowtable.VLANPCP
		m.Value[word] &^= flowtable.VLANPCP
	}
	return m
}

func checkActions(t *testing.T, line string, mod *FlowMod, v Version) {
	t.Helper()
	m := mod.Match.Unpack()
	encode, decode := AppendActions, DecodeActions
	if v != Version10 {
		encode = AppendInstructions
		decode = DecodeInstructions
	}
	wire := encode(nil, mod.Actions, &m, v, testTLVs)
	back, err := decode(wire, ActionContext{Version: v, Match: &m, Table: TableAll, TLVs: testTLVs})
	if err != nil {
		if e, ok := err.(*CodedError); ok && v != Version10 && e.Code == ErrActionMatchInconsistent {
			return // only OpenFlow 1.0 has actions that leave frames without the field unchanged
		}
		t.Errorf("%s\nversion %d: %v", line, v, err)
		return
	}
	if again := encode(nil, back, &m, v, testTLVs); !bytes.Equal(again, wire) {
		t.Errorf("%s\nversion %d: %s\n% x\n% x", line, v, FormatActions(back, nil), wire, again)
	}
}

// OpenFlow 1.0 has no action "group". Weft encodes it as Nicira's action, like ovs-ofctl.
func TestGroupInOpenFlow10(t *testing.T) {
	want := []byte{0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 0, 40, 0, 0, 0, 0, 0, 7}
	m := Match{}
	group := []Action{{Kind: ActGroup, Value: Value64(7)}}
	wire := AppendActions(nil, group, &m, Version10, nil)
	if !bytes.Equal(wire, want) {
		t.Errorf("group:7 is % x, want % x", wire, want)
	}
	back, err := DecodeActions(want, ActionContext{Version: Version10, Match: &m, Table: TableAll})
	if err != nil || FormatActions(back, nil) != "group:7" {
		t.Errorf("decoded: %s %v", FormatActions(back, nil), err)
	}
	if _, err := DecodeActions(want, ActionContext{Version: Version13, Match: &m, Table: TableAll}); err == nil {
		t.Error("OpenFlow 1.3 took the action, which Open vSwitch refuses there")
	}
}

// The max_len of an output is the same after decoding and encoding, because the controller Ryu compares it.
func TestOutputKeepsMaxLen(t *testing.T) {
	for _, v := range versions {
		wire := (&actionEncoder{v: v}).output(nil, 2, 65509)
		wire = endAction(wire, 0)
		list, err := DecodeActions(wire, ActionContext{Version: v, Table: TableAll})
		if err != nil {
			t.Fatal(err)
		}
		if back := AppendActions(nil, list, nil, v, testTLVs); !bytes.Equal(back, wire) {
			t.Errorf("version %d: % x becomes % x", v, wire, back)
		}
	}
}

func FuzzWireActions(f *testing.F) {
	for _, line := range corpusOf(f) {
		mod, err := ParseFlowMod(line, Add, WithTLVs(nil, testTLVs))
		if err != nil {
			continue
		}
		m := mod.Match.Unpack()
		for _, v := range versions {
			f.Add(uint8(v), AppendMatch(nil, &m, v, testTLVs), AppendInstructions(nil, mod.Actions, &m, v, testTLVs))
			f.Add(uint8(v), AppendMatch(nil, &m, v, testTLVs), AppendActions(nil, mod.Actions, &m, v, testTLVs))
		}
	}
	f.Fuzz(func(t *testing.T, version uint8, match, actions []byte) {
		v := Version(version)
		m, err := DecodeMatch(match, testTLVs)
		if err != nil {
			return
		}
		back, err := DecodeMatch(AppendMatch(nil, &m, v, testTLVs), testTLVs)
		if err != nil {
			t.Fatalf("%s: %v", FormatMatch(&m, WithTLVs(nil, testTLVs)), err)
		}
		if again, err := DecodeMatch(AppendMatch(nil, &back, v, testTLVs), testTLVs); err != nil || again != back {
			t.Fatalf("%s becomes %s: %v", FormatMatch(&back, WithTLVs(nil, testTLVs)), FormatMatch(&again, WithTLVs(nil, testTLVs)), err)
		}
		for _, decode := range []func([]byte, ActionContext) ([]Action, error){DecodeActions, DecodeInstructions} {
			list, err := decode(actions, ActionContext{Version: v, Match: &m, Table: 0, TLVs: testTLVs})
			if err != nil {
				continue
			}
			if text := FormatActions(list, nil); text == "" {
				t.Fatal("actions without a text")
			}
			AppendActions(nil, list, &m, v, testTLVs)
			AppendInstructions(nil, list, &m, v, testTLVs)
		}
	})
}

// A match of each field that has a header comes back from the wire as it was, in each version, together with
// one of contexts at least. Some contexts share the field's bits.
func TestEveryFieldCrossesTheWire(t *testing.T) {
	crosses := func(m Match) bool {
		for _, v := range versions {
			want := m
			if v != Version10 {
				want = onlyVLANFields(m)
			}
			if back, err := DecodeMatch(AppendMatch(nil, &m, v, nil), nil); err != nil || back != want {
				return false
			}
		}
		return true
	}
	for id := FTunID; id < FTunMetadata; id++ {
		f := &fields[id]
		value, _ := sample(f)
		if f.format == asFrag {
			value = "first"
		}
		if len(f.oxm) > 0 && !slices.ContainsFunc(append(contexts, "dl_type=0x894f"), func(context string) bool {
			mod, err := ParseFlowMod(strings.TrimPrefix(context+","+f.name+"="+value, ",")+",actions=drop", Add, nil)
			without, _ := ParseFlowMod(context+" actions=drop", Add, nil)
			return err == nil && mod.Match.Unpack() != without.Match.Unpack() && crosses(mod.Match.Unpack())
		}) {
			t.Errorf("%s: no match with it comes back from the wire", f.name)
		}
	}
}
