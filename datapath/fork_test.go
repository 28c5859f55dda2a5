// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
)

func underTags(f []byte, n int) []byte {
	out := append([]byte{}, f[:12]...)
	for i := range n {
		out = binary.BigEndian.AppendUint16(out, packet.EtherTypeVLAN)
		out = binary.BigEndian.AppendUint16(out, uint16(i+1))
	}
	return append(out, f[12:]...)
}

// popsAndForks returns a rig with two megaflows. The first matches frames of port 1: it
// pops a VLAN tag, looks the frame up again under recirc_id 9, and then sends it to
// port 2. The second sends frames with recirc_id 9 to port 3.
func popsAndForks(t *testing.T) *rig {
	r := newRig(t, testSizes)
	for no := range uint32(3) {
		r.addPort(no+1, porttest.Options{}, false)
	}
	r.megaflow(0, 1, 0, 0, 0, flowtable.Action{Op: flowtable.OpPopVLAN}, flowtable.Action{Op: flowtable.OpRecirc, U32: 9}, output(2))
	r.megaflow(1, 1, 9, 0, 0, output(3))
	return r
}

// Actions after a second look-up get the frame as it was before that look-up. The look-up may find an IP
// header behind the popped tag, and then shorten the frame or extend the header buffer.
func TestForkLeavesTheFrameAlone(t *testing.T) {
	padded := append(bigUDP(0x0a000001, 0x0a000002, 1, 2, 300), bytes.Repeat([]byte{0xee}, 400)...)
	solicitation := make([]byte, 14+40+130)
	packet.Ethernet(solicitation).SetType(packet.EtherTypeIPv6)
	ip := packet.IPv6(solicitation[14:])
	ip[0], ip[6], ip[7] = 0x60, packet.ProtoICMPv6, 255
	ip.SetPayloadLen(130)
	solicitation[54] = 135
	for name, f := range map[string][]byte{"padding": padded, "neighbour discovery": solicitation} {
		t.Run(name, func(t *testing.T) {
			r := popsAndForks(t)
			r.inject(1, underTags(f, 3))
			r.turn()
			want := underTags(f, 2)
			want[15] = 2
			want[19] = 3
			if got := r.tx(2).Take(); !bytes.Equal(got, want) {
				t.Errorf("behind the look-up: %d bytes, want %d:\n% x\n% x", len(got), len(want), got, want)
			}
			if r.tx(3).Take() == nil {
				t.Error("port 3 got no frame: the look-up under recirc_id 9 found nothing")
			}
			r.drops(nil)
		})
	}
}

// A frame that ends before its unfinished checksum is dropped at the second look-up,
// and no port fails.
func TestChecksumBehindTheEnd(t *testing.T) {
	f := append(udp(0x0a000001, 0x0a000002, 1, 2), bytes.Repeat([]byte{0xee}, 60)...)
	r := newRig(t, testSizes)
	r.addPort(1, porttest.Options{}, false)
	r.addPort(2, porttest.Options{}, false)
	r.megaflow(0, 1, 0, 0, 0, flowtable.Action{Op: flowtable.OpPopVLAN}, flowtable.Action{Op: flowtable.OpRecirc, U32: 9})
	r.megaflow(1, 1, 9, 0, 0, output(2))
	f = underTags(f, 3)
	o := packet.Offload{Flags: packet.OffloadPartial, CsumStart: uint16(len(f) - 10), CsumOffset: 8}
	if !r.rx(1).InjectUndone(f, o) {
		t.Fatal("receive queue full")
	}
	r.turn()
	if up, ok := r.upcall(); ok {
		t.Fatalf("%+v", up)
	}
	r.drops(map[packet.DropReason]uint64{packet.DropBadOffload: 1})
	r.equal("sent", r.sh.Ports[2].TxPackets, 0)
}
