// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/flowtable"
	"weft/packet"
)

// Frames of TestRewriteARPND.
var (
	ethernetHeader = []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	arpFrame       = append(append(ethernetHeader[:12:12], 8, 6), []byte{0, 1, 8, 0, 6, 4, 0, 1, 27: 0}...)
	solicitation   = ndFrame(135, 1)
	advertisement  = ndFrame(136, 2)
)

// ndFrame returns a message of neighbour discovery with an option of eight bytes.
func ndFrame(kind, option byte) []byte {
	f := append(ethernetHeader[:12:12], 0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, packet.ProtoICMPv6, 255)
	f = append(f, make([]byte, 32)...) // addresses
	return append(append(f, kind), []byte{0, 0, 0, 22: 0, 23: option, 24: 1, 30: 0}...)
}

// Each action changes a header such that the field in the frame's key becomes the action's operand.
func TestRewriteARPND(t *testing.T) {
	const mac = 0x020000000099
	for _, c := range []struct {
		frame []byte
		a     flowtable.Action
		word  int
		want  uint64
	}{
		{arpFrame, flowtable.Action{Op: flowtable.OpSetARPOp, U32: 2}, flowtable.WIP, 2 << 56},
		{arpFrame, flowtable.Action{Op: flowtable.OpSetARPSpa, U32: 9}, flowtable.WIPv4, 9 << 32},
		{arpFrame, flowtable.Action{Op: flowtable.OpSetARPTpa, U32: 9}, flowtable.WIPv4, 9},
		{arpFrame, flowtable.Action{Op: flowtable.OpSetARPSha, U64: mac}, flowtable.WARPSha, mac << 16},
		{arpFrame, flowtable.Action{Op: flowtable.OpSetARPTha, U64: mac}, flowtable.WARPTha, mac << 16},
		{advertisement, flowtable.Action{Op: flowtable.OpSetICMPType, U32: 135}, flowtable.WL4, 135 << 48},
		{advertisement, flowtable.Action{Op: flowtable.OpSetICMPCode, U32: 3}, flowtable.WL4, 136<<48 | 3<<32},
		{solicitation, flowtable.Action{Op: flowtable.OpSetNDTarget, U64: 7}, flowtable.WNDTarget, 7},
		{solicitation, flowtable.Action{Op: flowtable.OpSetNDTarget, U64: 7}, flowtable.WNDTarget + 1, 8},
		{solicitation, flowtable.Action{Op: flowtable.OpSetNDSll, U64: mac}, flowtable.WARPSha, mac << 16},
		{advertisement, flowtable.Action{Op: flowtable.OpSetNDTll, U64: mac}, flowtable.WARPTha, mac << 16},
		{advertisement, flowtable.Action{Op: flowtable.OpSetNDReserved, U32: 5 << 29}, flowtable.WND, 5<<61 | 2<<24},
		{solicitation, flowtable.Action{Op: flowtable.OpSetNDOptionsType, U32: 2}, flowtable.WND, 2 << 24},
		{solicitation, flowtable.Action{Op: flowtable.OpSetIPv6Label, U32: 0x12345}, flowtable.WL4, 135<<48 | 0x12345},
	} {
		var b packet.Batch
		f, header := b.Next()
		copy(header[:], c.frame)
		b.Commit(f, len(c.frame))
		var k flowtable.Key
		if reason := flowtable.Extract(&b, f, &k); reason != packet.DropNone || k[c.word] == c.want {
			t.Fatalf("operation %d before: %v, word %d is %x", c.a.Op, reason, c.word, k[c.word])
		}
		rewrite(f, &c.a, 8)
		if reason := flowtable.Extract(&b, f, &k); reason != packet.DropNone || k[c.word] != c.want {
			t.Errorf("operation %d: %v, word %d is %x, want %x", c.a.Op, reason, c.word, k[c.word], c.want)
		}
	}
}
