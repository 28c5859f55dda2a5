// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"testing"

	"weft/flowtable"
	"weft/internal/share"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/packet"
)

// The fields of a packet_in have the original tuple of the frame's connection if the flow
// that sent the frame saw a valid connection.
func TestMetadataOfTracked(t *testing.T) {
	frame := func(etherType, state uint64, ct ...uint64) *flowtable.Key {
		k := &flowtable.Key{flowtable.WEthDst: etherType, flowtable.WCT: state<<flowtable.CTStateShift | 17<<flowtable.CTProtoShift, flowtable.WCTPorts: 1000<<48 | 53<<32}
		copy(k[flowtable.WCTSrc:], ct)
		return k
	}
	const trk, inv = 0x20, 0x10 // bits of ct_state
	const established = trk | 2
	v4, v6 := []uint64{0, 0x0a000001, 0, 0x0a000002}, []uint64{0xfd << 56, 1, 0xfd << 56, 2}
	for _, c := range []struct {
		note uint64 // first word of the note
		key  *flowtable.Key
		want string
	}{
		{established << flowtable.CTStateShift, frame(packet.EtherTypeIPv4, established, v4...),
			"ct_state=est|trk,ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=17,ct_tp_src=1000,ct_tp_dst=53,ip,in_port=3"},
		{established<<flowtable.CTStateShift | 7, frame(packet.EtherTypeIPv6, established, v6...),
			"ct_state=est|trk,ct_zone=7,ct_ipv6_src=fd00::1,ct_ipv6_dst=fd00::2,ct_nw_proto=17,ct_tp_src=1000,ct_tp_dst=53,ipv6,in_port=3"},
		{established << flowtable.CTStateShift, nil, "ct_state=est|trk,in_port=3"}, // an engine of an earlier version
		{(trk | inv) << flowtable.CTStateShift, frame(packet.EtherTypeIPv4, trk|inv, v4...), "ct_state=inv|trk,ip,in_port=3"},
		{0, frame(packet.EtherTypeIPv4, established, v4...), "in_port=3"}, // behind ct_clear
	} {
		n := ControllerNote{CT: [flowtable.CTWords]uint64{c.note}}
		m := n.Metadata(3, c.key)
		if got := openflow.FormatMatch(&m, nil); got != c.want {
			t.Errorf("%x: %s\nwant %s", c.note, got, c.want)
		}
	}
}

// A port that makes a note with every frame evicts its own notes. The note of another port stays, although
// it is older and has the same fields.
func TestNotesByPort(t *testing.T) {
	table := NewNoteTable()
	common := ControllerNote{CameIn: 1, Userdata: "common"}
	quiet := table.StoreNote(&common)
	common.CameIn = 2
	if table.StoreNote(&common) == quiet {
		t.Error("two ports share a note")
	}
	const many = MaxNotes * 5 / 8 // one port may have a half
	for n := range uint64(many) {
		table.StoreNote(&ControllerNote{CameIn: 2, Cookie: n})
	}
	if n, ok := table.Note(quiet); !ok || n.Userdata != "common" {
		t.Errorf("the quiet port's note is %+v", n)
	}
	used, evicted := table.Shares(func(port uint32, u share.Use) {
		if want := map[uint32]uint64{2: uint64(many + 1 - u.Used)}[port]; u.Refused != want {
			t.Errorf("port %d lost %d notes, want %d", port, u.Refused, want)
		}
	})
	if used > MaxNotes || used < MaxNotes/4 || evicted == 0 {
		t.Errorf("%d notes in use, %d evicted", used, evicted)
	}
}

// A megaflow whose frames go to a controller matches the port that owns the note.
func TestNoteOwnerIsMatched(t *testing.T) {
	p := ofproto.NewTables(ofproto.Limits{})
	apply(t, p, 1, openflow.Add, "actions=controller")
	env := notingEnv{newEnv(), NewNoteTable(), NewRecircTable()}
	k := keyOfText(t, "in_port=3")
	if tr := Translate(p, &k, env); tr.Mask[flowtable.WPort]&flowtable.InPortBits != flowtable.InPortBits {
		t.Errorf("the megaflow has the mask %x", tr.Mask[flowtable.WPort])
	}
}
