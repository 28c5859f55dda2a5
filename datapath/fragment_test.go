// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"testing"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
)

// fragmentsOf cuts the datagram of an IPv4 frame into fragments with n payload bytes each, and returns
// their frames. id is the IP identification.
func fragmentsOf(f []byte, n int, id uint16) (frames [][]byte) {
	payload := f[34:]
	for at := 0; at < len(payload); at += n {
		end := min(at+n, len(payload))
		g := append(append([]byte(nil), f[:34]...), payload[at:end]...)
		ip := packet.IPv4(g[14:])
		ip.SetTotalLen(20 + end - at)
		ip.SetID(id)
		where := uint16(at / 8)
		if end < len(payload) {
			where |= 0x2000
		}
		ip.SetFlagsFrag(where)
		ip.SetChecksum(0)
		ip.SetChecksum(packet.Checksum(ip[:20]))
		frames = append(frames, g)
	}
	return frames
}

func bigUDP(src, dst uint32, sport, dport uint16, n int) []byte {
	f := append(udp(src, dst, sport, dport)[:42], bytes.Repeat([]byte{7}, n)...)
	packet.IPv4(f[14:]).SetTotalLen(28 + n)
	ip := packet.IPv4(f[14:])
	ip.SetChecksum(0)
	ip.SetChecksum(packet.Checksum(ip[:20]))
	u := packet.UDP(f[34:])
	u.SetLen(8 + n)
	u.SetChecksum(0)
	u.SetChecksum(^packet.AddSums(packet.Sum(u), packet.SumIPv4(src, dst, packet.ProtoUDP, 8+n)))
	return f
}

// reassembled returns the frame of the whole datagram, with the headers of the first fragment.
func reassembled(t *testing.T, frames [][]byte) []byte {
	t.Helper()
	var payload []byte
	for _, f := range frames {
		at := int(packet.IPv4(f[14:]).FlagsFrag()&0x1fff) * 8
		payload = append(payload, make([]byte, max(at+len(f)-34-len(payload), 0))...)
		copy(payload[at:], f[34:])
		if packet.Checksum(f[14:34]) != 0 {
			t.Errorf("IP checksum of %x", f[14:34])
		}
	}
	return append(append([]byte(nil), frames[0][:34]...), payload...)
}

// Fragments may arrive in any order. They are tracked by the ports in the first fragment, forwarded as
// fragments, and counted once.
func TestFragments(t *testing.T) {
	r := firewall(t)
	r.inject(1, udp(0x0a000001, 0x0a000002, 1, 2))
	r.turn()
	pieces := fragmentsOf(bigUDP(0x0a000002, 0x0a000001, 2, 1, 3000), 1000, 9)
	for _, i := range []int{2, 0, 3} {
		r.inject(2, pieces[i])
	}
	r.turn()
	r.equal("sent too early", r.sh.Ports[1].TxPackets, 0)
	r.inject(2, pieces[1])
	r.turn()
	got := r.tx(1).TakeAll()
	if len(got) != 4 {
		t.Fatalf("%d frames sent", len(got))
	}
	for i := range got {
		if !bytes.Equal(got[i], pieces[i]) {
			t.Errorf("piece %d: %x", i, got[i][:40])
		}
	}
	r.equal("packets before", r.sh.Cache.Flows[1].Packets, 4)
	r.equal("packets behind", r.sh.Cache.Flows[4].Packets, 4)
	r.equal("held", uint64(r.w.held.count), 0)
	r.equal("datagrams", uint64(r.w.fragments.Count), 0)
	// Fragments are dropped if their connection is not allowed to begin on this port.
	for _, f := range fragmentsOf(bigUDP(0x0a000009, 0x0a000001, 2, 1, 3000), 1000, 9) {
		r.inject(2, f)
	}
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropFlow: 4})
}

// A fragmented datagram begins a connection with NAT. The addresses are changed in all
// fragments, the ports and the checksum in the first one.
func TestFragmentsThroughNAT(t *testing.T) {
	r := firewall(t)
	snat := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit | flowtable.CTNAT | flowtable.CTNATSrc | flowtable.CTRange,
		Lo: [2]uint64{0, 0xc0000201}, Hi: [2]uint64{0, 0xc0000201}, PortLo: 7777, PortHi: 7777}
	r.command(AppendCommand(nil, CmdRemove, 0, nil))
	r.megaflow(0, 1, 0, 0, 0, append(snat.AppendTo(nil), output(2))...)
	for range 2 {
		for _, f := range fragmentsOf(bigUDP(0x0a000001, 0x0a000002, 1, 2, 5000), 1480, 10) {
			r.inject(1, f)
		}
		r.turn()
		got := r.tx(2).TakeAll()
		if len(got) != 4 {
			t.Fatalf("%d frames sent", len(got))
		}
		whole := reassembled(t, got)
		want := reassembled(t, fragmentsOf(bigUDP(0xc0000201, 0x0a000002, 7777, 2, 5000), 1480, 10))
		if !bytes.Equal(whole, want) {
			t.Fatalf("got\n%x, expected\n%x", whole[:60], want[:60])
		}
	}
	r.equal("connections", uint64(r.w.tracks.tracker.Count()), 1)
	r.drops(nil)
}

// A datagram with overlapping fragments is dropped as a whole. Incomplete datagrams are dropped after a
// timeout.
func TestBadFragments(t *testing.T) {
	r := firewall(t)
	pieces := fragmentsOf(bigUDP(0x0a000001, 0x0a000002, 1, 2, 3000), 1000, 9)
	overlap := fragmentsOf(bigUDP(0x0a000001, 0x0a000002, 1, 2, 3000), 1008, 9)[1]
	r.inject(1, pieces[0], pieces[1], pieces[1], overlap, pieces[2], pieces[3])
	r.turn()
	r.equal("sent", r.sh.Ports[2].TxPackets, 0)
	r.drops(map[packet.DropReason]uint64{packet.DropBadFragment: 6})
	r.equal("held", uint64(r.w.held.count), 0)

	r.inject(1, fragmentsOf(bigUDP(0x0a000001, 0x0a000002, 1, 2, 3000), 1000, 11)[:2]...)
	r.turn()
	r.equal("held", uint64(r.w.held.count), 2)
	r.w.fixed += heldTimeoutNS
	r.turn()
	r.equal("held", uint64(r.w.held.count), 0)
	r.equal("datagrams", uint64(r.w.fragments.Count), 0)
	r.drops(map[packet.DropReason]uint64{packet.DropBadFragment: 6, packet.DropHeldExpired: 2})
}

// A datagram whose fragments miss after tracking is forwarded once the control
// process has answered.
func TestFragmentsThatMiss(t *testing.T) {
	r := firewall(t)
	r.command(AppendCommand(nil, CmdRemove, 2, nil))
	r.command(AppendCommand(nil, CmdRemove, 0, nil))
	pieces := fragmentsOf(bigUDP(0x0a000001, 0x0a000002, 1, 2, 3000), 1000, 9)
	r.inject(1, pieces...)
	r.turn()
	track := []flowtable.Action{{Op: flowtable.OpCT, U16: 5}, {Op: flowtable.OpRecirc, U32: 9}}
	r.megaflow(0, 1, 0, 0, 0, track...)
	answer := func() {
		for range pieces {
			up := r.mustUpcall(UpMiss)
			r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
		}
		r.turn()
	}
	answer()
	r.turn()
	commit := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit}
	r.megaflow(2, 1, 9, 0xff, conntrack.Tracked|conntrack.New, append(commit.AppendTo(nil), output(2))...)
	answer()
	r.turn()
	if got := r.tx(2).TakeAll(); len(got) != 4 || !bytes.Equal(reassembled(t, got), reassembled(t, pieces)) {
		t.Fatalf("%d frames sent, %d held", len(got), r.w.held.count)
	}
	r.drops(nil)
	r.equal("connections", uint64(r.w.tracks.tracker.Count()), 1)
}

// Injected fragments with a ct action are held and tracked as one datagram. A single
// or overlapping fragment begins no connection.
func TestInjectedFragments(t *testing.T) {
	r := firewall(t)
	commit := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit}
	send := func(f []byte, list ...flowtable.Action) {
		r.command(AppendInject(nil, 1, append(commit.AppendTo(nil), list...), f))
		r.turn()
	}
	pieces := fragmentsOf(bigUDP(0x0a000001, 0x0a000002, 1, 2, 3000), 1000, 9)
	for _, i := range []int{0, 3, 1} {
		send(pieces[i], output(2))
	}
	r.equal("sent too early", r.sh.Ports[2].TxPackets, 0)
	r.equal("connections too early", uint64(r.w.tracks.tracker.Count()), 0)
	send(pieces[2], output(2))
	r.turn()
	got := r.tx(2).TakeAll()
	if len(got) != 4 || !bytes.Equal(reassembled(t, got), reassembled(t, pieces)) {
		t.Fatalf("%d frames sent", len(got))
	}
	r.equal("connections", uint64(r.w.tracks.tracker.Count()), 1)

	// Injected fragments may mix with fragments from a port.
	pieces = fragmentsOf(bigUDP(0x0a000001, 0x0a000002, 1, 2, 3000), 1000, 10)
	for _, f := range pieces[:2] {
		send(f, flowtable.Action{Op: flowtable.OpRecirc, U32: 9})
	}
	r.inject(1, pieces[2:]...)
	r.turn()
	if got := r.tx(2).TakeAll(); len(got) != 4 || !bytes.Equal(reassembled(t, got), reassembled(t, pieces)) {
		t.Fatalf("%d frames sent of two senders", len(got))
	}

	pieces = fragmentsOf(bigUDP(0x0a000003, 0x0a000002, 1, 2, 3000), 1000, 11)
	send(pieces[0], output(2))
	send(fragmentsOf(bigUDP(0x0a000003, 0x0a000002, 1, 2, 3000), 984, 11)[1], output(2))
	for _, f := range pieces[1:] {
		send(f, output(2))
	}
	r.turn()
	r.equal("sent of overlapping ones", uint64(len(r.tx(2).TakeAll())), 0)
	r.equal("connections", uint64(r.w.tracks.tracker.Count()), 1)
	r.equal("held", uint64(r.w.held.count), 0)
	r.equal("lists", uint64(len(r.w.fragments.lists)), 0)
	r.drops(map[packet.DropReason]uint64{packet.DropBadFragment: 5})
}
