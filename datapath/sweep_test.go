// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
	"weft/packet/packettest"
	"weft/port/porttest"
)

// Two connections share the megaflow before tracking, but not the megaflow after it.
// Each frame gets the actions of its own second megaflow. After this megaflow was
// removed, the frame causes an upcall.
func TestPairsInOneBatch(t *testing.T) {
	r := newRig(t, testSizes)
	if err := r.w.setConnections(ctTable(t)); err != nil {
		t.Fatal(err)
	}
	r.w.fixed = 1 << 50
	for no := uint32(1); no <= 3; no++ {
		r.addPort(no, porttest.Options{}, false)
	}
	const mask = conntrack.New | conntrack.Established
	for no := uint32(1); no <= 2; no++ {
		r.megaflow(no, no, 0, 0, 0, flowtable.Action{Op: flowtable.OpCT, U16: 5}, flowtable.Action{Op: flowtable.OpRecirc, U32: 9})
	}
	commit := flowtable.CTRequest{Zone: 5, Bits: flowtable.CTCommit}
	r.megaflow(10, 1, 9, mask, conntrack.New, append(commit.AppendTo(nil), output(2))...)
	r.megaflow(12, 2, 9, mask, conntrack.Established, output(1))
	for i := range uint32(2) { // one megaflow for each source port
		key := flowtable.Key{flowtable.WPort: 1<<32 | 9, flowtable.WL4: uint64(1000+i) << 48, flowtable.WCT: conntrack.Established << 24}
		bits := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WL4: 0xffff << 48, flowtable.WCT: mask << 24}
		r.command(AppendInstall(nil, 20+i, &key, &bits, []flowtable.Action{output(2 + i)}))
	}
	var out, back [2][]byte
	for i := range uint16(2) {
		out[i], back[i] = udp(0x0a000001, 0x0a000002, 1000+i, 80), udp(0x0a000002, 0x0a000001, 80, 1000+i)
		r.inject(1, out[i])
		r.turn()
		r.inject(2, back[i])
		r.turn()
	}
	for range 3 {
		r.inject(1, out[0], out[1], out[0], out[0])
		r.turn()
	}
	for no := uint32(2); no <= 3; no++ {
		r.tx(no).TakeAll()
	}
	before := r.w.fused.hits
	r.inject(1, out[0], out[0], out[1], out[0], out[1])
	r.turn()
	r.equal("frames by a hint", r.w.fused.hits-before, 5)
	for i, want := range []int{3, 2} {
		sent := r.tx(uint32(2 + i)).TakeAll()
		r.equal("sent", uint64(len(sent)), uint64(want))
		for _, f := range sent {
			if string(f) != string(out[i]) {
				t.Errorf("port %d sent %x", 2+i, f)
			}
		}
		r.equal("counted", r.sh.Cache.Flows[20+i].Packets, []uint64{12, 5}[i])
	}
	r.command(AppendCommand(nil, CmdRemove, 20, nil))
	r.inject(1, out[0], out[1])
	r.turn()
	r.mustUpcall(UpMiss)
	r.equal("sent by what is gone", uint64(len(r.tx(2).TakeAll())), 0)
	r.equal("sent by the other", uint64(len(r.tx(3).TakeAll())), 1)
	r.drops(map[packet.DropReason]uint64{})
}

// sweep sends IPv6 datagrams of fused connections in runs, as it does IPv4.
func TestSweepSendsBothFamilies(t *testing.T) {
	ends := []layers.UDPPort{1000, 80}
	frame := func(v6 bool, from int) []byte {
		u := &layers.UDP{SrcPort: ends[from], DstPort: ends[1-from]}
		if !v6 {
			return udp(0x0a000001+uint32(from), 0x0a000002-uint32(from), uint16(u.SrcPort), uint16(u.DstPort))
		}
		addresses := []net.IP{net.ParseIP("fd00::1"), net.ParseIP("fd00::2")}
		ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: addresses[from], DstIP: addresses[1-from]}
		u.SetNetworkLayerForChecksum(ip)
		return frameOf(t, ethernetTo(layers.EthernetTypeIPv6), ip, u, gopacket.Payload("datagram"))
	}
	for _, v6 := range []bool{false, true} {
		r := firewall(t)
		r.w.fixed = 1 << 50
		out, back := frame(v6, 0), frame(v6, 1)
		r.inject(1, out)
		r.turn()
		r.inject(2, back)
		r.turn()
		for range 2 { // from the second batch on, hints are tried before the flow cache
			r.inject(1, out, out, out, out)
			r.turn()
		}
		r.tx(2).TakeAll()
		for turn := range 4 {
			before := r.w.fused.hits
			r.inject(1, out, out, out, out)
			r.w.receive(r.w.queues.queue(0)) // a whole pass would poll another queue and clear fused.found
			if r.w.fused.found != 0 || r.w.fused.hits-before != 4 {
				t.Errorf("IPv6 %t, turn %d: %#x are left, %d by a hint", v6, turn, r.w.fused.found, r.w.fused.hits-before)
			}
			r.turn()
			r.equal("sent", uint64(len(r.tx(2).TakeAll())), 4)
		}
		r.equal("counted", r.sh.Cache.Flows[3].Packets, 6*4)
		r.drops(map[packet.DropReason]uint64{})
	}
}

// seekLive finds the connection of each frame by the key, whatever headers precede the
// IP header. It ignores fragments.
func TestSeekLive(t *testing.T) {
	r := newRig(t, testSizes)
	if err := r.w.setConnections(ctTable(t)); err != nil {
		t.Fatal(err)
	}
	r.w.fixed = 1 << 50
	w, tr := r.w, r.w.tracks.tracker
	plain := [][]byte{udp(0x0a000001, 0x0a000002, 1000, 80), tcp(0x0a000001, 0x0a000002, 1000, 80, 0x02, 1, 0, 5)}
	llc := []byte{0, 0, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0}
	var frames [][]byte
	for _, f := range plain {
		snap := slices.Replace(slices.Clone(f), 12, 14, llc...)
		binary.BigEndian.PutUint16(snap[12:], uint16(len(snap)-14))
		options := slices.Insert(slices.Clone(f), 34, 1, 1, 1, 0)
		options[14]++
		packet.IPv4(options[14:]).SetTotalLen(len(options) - 14)
		frames = append(frames, f, snap, options,
			slices.Insert(slices.Clone(f), 12, 0x81, 0, 0, 5),
			slices.Insert(slices.Clone(f), 12, 0x88, 0xa8, 0, 5, 0x81, 0, 0, 6))
	}
	for i, f := range frames { // each frame has its own connection
		f[len(f)-1]++ // nobody verifies the checksum
		at := bytes.Index(f, []byte{1000 >> 8, 1000 & 0xff, 0, 80})
		binary.BigEndian.PutUint16(f[at:], uint16(2000+i))
	}
	fragment := slices.Clone(frames[0])
	packet.IPv4(fragment[14:]).SetFlagsFrag(0x2000)

	arena := packettest.NewArena(t, 1<<16)
	fill := func(frames ...[]byte) {
		arena.Reset()
		w.batch.Reset()
		tr.Forget(^uint32(0))
		w.live = allOf(len(frames))
		for _, f := range frames {
			arena.Add(&w.batch, f, packet.InnerHeader, 0)
		}
		if _, special := flowtable.ExtractAll(&w.batch, &w.keys, ^uint32(0)); special != 0 {
			t.Fatalf("frames %#x are malformed", special)
		}
	}
	fill(frames...)
	var metas [packet.BatchSize]conntrack.Meta
	var all []uint8
	for i := range frames {
		all = append(all, uint8(i))
	}
	tr.Process(&w.batch, all, &metas, &conntrack.Request{Zone: 5, Commit: true}, 1<<50)
	settle := func(order []uint8, want ...int) {
		t.Helper()
		if len(order) != len(want) {
			t.Fatalf("sought %d, want %d", order, want)
		}
		for n, i := range slices.Clone(order) {
			ref, dir, ok := tr.Settle(int(i))
			if !ok || dir != 0 || ref != metas[want[n]].Ref || !tr.Known(int(i), 5) {
				t.Errorf("frame %x: connection %+v, of which it is %+v", frames[want[n]], ref, metas[want[n]].Ref)
			}
		}
	}
	fill(frames...)
	order, _, _ := w.seekLive(5)
	settle(order, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	fill(frames[1], fragment, frames[2])
	order, _, alike := w.seekLive(5)
	settle(order, 1, 2)
	if alike != 0 {
		t.Errorf("alike %#x", alike)
	}
}
