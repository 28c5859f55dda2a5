// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"testing"

	"weft/flowtable"
	"weft/packet"
)

func TestFieldTable(t *testing.T) {
	for id := FTunID; id < FTunMetadata; id++ {
		f := &fields[id]
		switch {
		case f.name == "" || fieldNames[f.name] != id:
			t.Errorf("the name %[2]q of field %[1]d finds field %[3]d", id, f.name, fieldNames[f.name])
		case f.bits == 0 || f.bytes == 0 || f.bits > 8*f.bytes:
			t.Errorf("%s has %d bits, which do not fit into its %d bytes", f.name, f.bits, f.bytes)
		case f.bits <= 64 && int(f.shift)+int(f.storedBits()) > 64, f.bits > 64 && (f.shift != 0 || f.bits != 128):
			t.Errorf("%s: %d bits from bit %d cross the end of the word", f.name, f.bits, f.shift)
		}
		for _, n := range f.oxm {
			if got, ok := parseSubfield(n.name + "[]"); !ok || got != WholeField(id) {
				t.Errorf("the OXM name %s finds field %v, %v", n.name, got, ok)
			}
		}
	}
}

// FormatMatch writes every field that a match has.
func TestEveryFieldIsShown(t *testing.T) {
	for id := FTunID; id < FTunMetadata; id++ {
		var m Match
		word, hi, lo := WholeField(id).Mask()
		m.Mask[word] = hi
		if lo != 0 {
			m.Mask[word+1] = lo
		}
		if FormatMatch(&m, nil) == "" {
			t.Errorf("FormatMatch leaves out %s", id)
		}
	}
}

func TestDatapathActionsText(t *testing.T) {
	actions := []flowtable.Action{
		{Op: flowtable.OpSetIPv6Src, U64: 0xfe80 << 48}, {Op: flowtable.OpData, U64: 1},
		{Op: flowtable.OpSetIPv4Dst, U32: 0x0a000001}, {Op: flowtable.OpSetTOS, U32: 8}, {Op: flowtable.OpSetTTL, U32: 9},
		{Op: flowtable.OpTunMeta, U64: 7<<flowtable.TunGBPIDShift | 8<<flowtable.TunGBPFlagsShift | 1<<flowtable.TunFlagsShift},
		{Op: flowtable.OpTunOptions, U16: 12}, {Op: flowtable.OpData, U64: 0x0102030405060708}, {Op: flowtable.OpData, U64: 0x090a0b0c << 32},
		{Op: flowtable.OpTunnel, U32: 3, U64: 100}, {Op: flowtable.OpOutput, U32: 3},
		{Op: flowtable.OpDrop, U32: uint32(packet.DropLoop)},
	}
	want := `set(ipv6(src=fe80::1)),set(ipv4(dst=10.0.0.1)),set(ip(tos=0x8)),set(ip(ttl=9)),set(tunnel(gbp_id=7,gbp_flags=0x8,flags=0x1)),set(tunnel(options=0102030405060708090a0b0c)),tunnel(template=3,vni=100),"vm-1",drop(loop)`
	if got := FormatDatapathActions(actions, portNames()); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// FormatFlowMod makes few allocations for a flow that matches a connection: the text, and the text of its
// actions.
func TestFormatFlowModAllocations(t *testing.T) {
	mod, err := ParseFlowMod("priority=100,in_port=1,udp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=1024,tp_dst=2000,actions=output:2", Add, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { FormatFlowMod(&mod, nil) }); n > 3 {
		t.Errorf("%v allocations", n)
	}
}
