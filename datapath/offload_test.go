// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/port/porttest"
	"weft/tunnel"
)

const largeHeaders = 14 + 20 + 20

// large returns a TCP frame with n bytes of payload and a complete checksum.
func large(dst uint64, n int) []byte {
	f := make([]byte, largeHeaders+n)
	packet.Ethernet(f).SetDst(dst)
	packet.Ethernet(f).SetSrc(0x020000000001)
	packet.Ethernet(f).SetType(packet.EtherTypeIPv4)
	copy(f[14:], []byte{0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, packet.ProtoTCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
	copy(f[34:], []byte{0x80, 1, 0x14, 0x51, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x18, 0xff, 0, 0, 0, 0, 0})
	for i := range f[largeHeaders:] {
		f[largeHeaders+i] = byte(i ^ i>>8)
	}
	twinChecksums(f)
	return f
}

// undo makes the checksum of frame f unfinished. It returns the frame and its offload,
// with segments of size bytes.
func undo(f []byte, size int) ([]byte, packet.Offload) {
	f = bytes.Clone(f)
	binary.BigEndian.PutUint16(f[50:], packet.SumIPv4(0x0a000001, 0x0a000002, packet.ProtoTCP, len(f)-34))
	o := packet.Offload{Flags: packet.OffloadPartial, CsumStart: 34, CsumOffset: 16}
	if size > 0 {
		o.GSO, o.Size = packet.GSOTCPv4, uint16(size)
	}
	return f, o
}

// twinCut is a reference implementation of cutting a large frame into segments.
func twinCut(f []byte, size int) (list [][]byte) {
	payload := f[largeHeaders:]
	for at := 0; at < len(payload); at += size {
		end := min(at+size, len(payload))
		s := append(bytes.Clone(f[:largeHeaders]), payload[at:end]...)
		binary.BigEndian.PutUint16(s[16:], uint16(len(s)-14))
		binary.BigEndian.PutUint16(s[18:], 0x1234+uint16(len(list)))
		binary.BigEndian.PutUint32(s[38:], 0x01020304+uint32(at))
		if end < len(payload) {
			s[47] &^= 0x08
		}
		twinChecksums(s)
		list = append(list, s)
	}
	return list
}

func sameFrames(t *testing.T, name string, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d frames, want %d", name, len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("%s: frame %d of %d differs:\n% x\n% x", name, i, len(want), got[i][:80], want[i][:80])
		}
	}
}

func withOffloads(t *testing.T) *rig {
	r := withTunnel(t, tunnel.TemplateReady)
	r.addPort(5, porttest.Options{SlotBytes: packet.MaxFrameLen, MTU: 1514, Takes: packet.TakesAll}, false)
	return r
}

// A large frame is sent whole to a port that takes large frames, and cut for other
// ports and tunnels.
func TestLargeFrameToManyPorts(t *testing.T) {
	const size, n, outer = 1460, 60000, 50
	r := withOffloads(t)
	r.install(0, 1, 0xa, output(5), output(2), toTunnel(77))
	f := large(0xa, n)
	undone, o := undo(f, size)
	r.rx(1).InjectUndone(undone, o)
	r.inject(1, ethernet(0xa, 100, 7)) // a small frame, which must not overtake the large one
	r.turn()

	got, left := r.tx(5).TakeUndone()
	if !bytes.Equal(got, undone) || left != o {
		t.Fatalf("port 5: %d bytes with %+v", len(got), left)
	}
	want := twinCut(f, size)
	after := [][]byte{ethernet(0xa, 100, 7)}
	sameFrames(t, "port 2", r.tx(2).TakeAll(), append(want, after...))
	fits := 1514 - outer - largeHeaders // room for payload in the tunnel
	want = twinCut(f, fits)
	wire := r.tx(uplinkPort).TakeAll()
	var inner [][]byte
	for i, w := range wire {
		if len(w) > 1514 || int(binary.BigEndian.Uint16(w[16:])) != len(w)-14 || int(binary.BigEndian.Uint16(w[38:])) != len(w)-34 ||
			packet.Sum(w[14:34]) != 0xffff {
			t.Fatalf("outer header of frame %d: % x", i, w[:50])
		}
		inner = append(inner, w[outer:])
	}
	sameFrames(t, "uplink", inner, append(want, after...))
	r.equal("sent to 5", r.sh.Ports[5].TxPackets, 2)
	r.equal("sent on the uplink", r.sh.Ports[uplinkPort].TxPackets, uint64(len(wire)))
	r.equal("sent by vxlan", r.sh.Ports[vxlanPort].TxPackets, uint64(len(wire)))
	r.drops(nil)

	// Segments from a tunnel are merged for a port that takes large frames, and
	// unchanged for others.
	r.install(1, vxlanPort, 0xa, output(5))
	r.tx(5).TakeAll()
	for len(wire) > 0 {
		k := min(len(wire), packet.BatchSize)
		r.inject(uplinkPort, wire[:k]...)
		r.turn()
		merged := inner[:k]
		if len(wire) == k {
			merged = inner[:k-1] // the last frame is not TCP
		}
		got, left := r.tx(5).TakeUndone()
		if left.GSO != packet.GSOTCPv4 || int(left.Size) != fits {
			t.Fatalf("%d bytes came back with %+v", len(got), left)
		}
		// Cutting the merged frame gives the original segments.
		r.w.batch.Reset()
		var again [][]byte
		at := 0x1234 + len(want) + 1 - len(wire)
		for i, s := range twinCut(got, fits) {
			binary.BigEndian.PutUint16(s[18:], uint16(at+i))
			binary.BigEndian.PutUint32(s[38:], 0x01020304+uint32((at+i-0x1234)*fits))
			twinChecksums(s)
			again = append(again, s)
		}
		sameFrames(t, "back", again, merged)
		wire, inner = wire[k:], inner[k:]
	}
	r.equal("flow", r.w.cache.Flow(1).Packets, uint64(len(want)+1)) // counts the frames before they merge
}

// A large frame that misses is held whole, and cut when it is sent.
func TestLargeFrameMisses(t *testing.T) {
	r := withOffloads(t)
	f := large(0xa, 65000)
	undone, o := undo(f, 1000)
	r.rx(1).InjectUndone(undone, o)
	r.turn()
	up := r.mustUpcall(UpMiss)
	r.install(0, 1, 0xa, output(5), output(2))
	r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
	r.turn()
	sameFrames(t, "port 2", r.tx(2).TakeAll(), twinCut(f, 1000))
	if got, left := r.tx(5).TakeUndone(); !bytes.Equal(got, undone) || left != o {
		t.Fatalf("port 5: %d bytes with %+v", len(got), left)
	}
	// CmdExecute cuts a held large frame into segments, as the actions of a flow do.
	undone, o = undo(large(0xb, 3000), 1000)
	r.rx(1).InjectUndone(undone, o)
	r.turn()
	r.command(AppendExecute(nil, r.mustUpcall(UpMiss).Arg, []flowtable.Action{output(2)}))
	r.turn()
	sameFrames(t, "executed", r.tx(2).TakeAll(), twinCut(large(0xb, 3000), 1000))
	r.drops(nil)
}

// An unfinished checksum is completed once for several ports that need it. A port
// that takes unfinished checksums gets the frame unchanged.
func TestPartialChecksum(t *testing.T) {
	r := withOffloads(t)
	r.install(0, 1, 0xa, output(5), output(2), output(2))
	f := large(0xa, 700)
	undone, o := undo(f, 0)
	r.rx(1).InjectUndone(undone, o)
	r.inject(1, f)
	r.turn()
	sameFrames(t, "port 2", r.tx(2).TakeAll(), [][]byte{f, f, f, f})
	for range 2 {
		// Ports send in the order of their first use by the batch: port 5 before port 2.
		got, left := r.tx(5).TakeUndone()
		if left.Flags&packet.OffloadPartial != 0 {
			if !bytes.Equal(got, undone) {
				t.Fatal("port 5 got something else")
			}
		} else if !bytes.Equal(got, f) {
			t.Fatal("port 5 got something else")
		}
	}
	r.drops(nil)
}

// A frame whose offload contradicts its headers is dropped. The other frames of its batch are sent.
func TestBadOffload(t *testing.T) {
	r := withOffloads(t)
	r.install(0, 1, 0xa, output(5))
	undone, o := undo(large(0xa, 3000), 1000)
	for _, bad := range []packet.Offload{
		{GSO: packet.GSOTCPv4, Size: 1000},
		{GSO: packet.GSOTCPv6, Size: 1000, Flags: packet.OffloadPartial, CsumStart: 34, CsumOffset: 16},
		{GSO: packet.GSOUDP, Size: 1000, Flags: packet.OffloadPartial, CsumStart: 34, CsumOffset: 6},
		{GSO: packet.GSOTCPv4, Flags: packet.OffloadPartial, CsumStart: 34, CsumOffset: 16},
		{Flags: packet.OffloadPartial, CsumStart: 60000, CsumOffset: 16},
		{GSO: packet.GSOTCPv4, Size: 1, Flags: packet.OffloadPartial, CsumStart: 34, CsumOffset: 16}, // this frame would need 2,946 segments
	} {
		r.rx(1).InjectUndone(undone, bad)
	}
	r.rx(1).InjectUndone(undone, o)
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropBadOffload: 6})
	r.equal("sent", r.sh.Ports[5].TxPackets, 1)
}

// Each segment for which the output port has no room counts as dropped.
func TestLargeFrameToFullPort(t *testing.T) {
	r := withOffloads(t)
	r.install(0, 1, 0xa, output(2))
	r.tx(2).Room.Store(40)
	undone, o := undo(large(0xa, 65000), 650)
	r.rx(1).InjectUndone(undone, o)
	r.turn()
	r.drops(map[packet.DropReason]uint64{packet.DropTxFull: 60})
	r.equal("sent", r.sh.Ports[2].TxPackets, 40)
	sameFrames(t, "port 2", r.tx(2).TakeAll(), twinCut(large(0xa, 65000), 650)[:40])
}

func TestOffloadsAllocateNothing(t *testing.T) {
	r := withOffloads(t)
	r.install(0, 1, 0xa, output(5), output(2), toTunnel(77))
	r.install(1, vxlanPort, 0xa, output(5))
	undone, o := undo(large(0xa, 60000), 1400)
	for _, no := range []uint32{2, 5, uplinkPort} {
		r.tx(no).Discard.Store(true)
	}
	r.turn()
	back := twinCut(large(0xa, 40000), 1400)
	var wire [][]byte
	tmpl := r.sh.Templates[1]
	for _, f := range back {
		h := append(bytes.Clone(tmpl.Header[:tmpl.Len]), f...)
		binary.BigEndian.PutUint16(h[16:], uint16(len(h)-14))
		binary.BigEndian.PutUint16(h[24:], 0)
		binary.BigEndian.PutUint16(h[24:], packet.Checksum(h[14:34]))
		binary.BigEndian.PutUint16(h[38:], uint16(len(h)-34))
		h[48] = 77
		wire = append(wire, h)
	}
	if n := testing.AllocsPerRun(20, func() {
		r.rx(1).InjectUndone(undone, o)
		for _, w := range wire {
			r.rx(uplinkPort).Inject(w)
		}
		r.w.pass()
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
	r.drops(nil)
	if r.sh.Ports[5].TxPackets > 2*21+2 {
		t.Fatalf("%d frames to port 5: nothing was coalesced", r.sh.Ports[5].TxPackets)
	}
}

// A large frame behind a pushed label stack entry is cut for every output, because receivers
// of its offload would look for IP behind Ethernet. After a pop, outputs take the offload again.
func TestPushedMPLSOnLargeFrame(t *testing.T) {
	const size, n, entry = 1400, 5000, 0x00005140
	push := flowtable.Action{Op: flowtable.OpPushMPLS, U16: packet.EtherTypeMPLS, U32: entry}
	pop := flowtable.Action{Op: flowtable.OpPopMPLS, U16: packet.EtherTypeIPv4}
	for _, cut := range []int{size, 0} {
		r := withOffloads(t)
		install := func(slot, id uint32, list ...flowtable.Action) {
			key, mask := flowtable.Key{flowtable.WPort: 1<<32 | uint64(id)}, flowtable.Key{flowtable.WPort: ^uint64(0)}
			r.command(AppendInstall(nil, slot, &key, &mask, list))
		}
		install(0, 0, push, output(5), flowtable.Action{Op: flowtable.OpRecirc, U32: 7})
		install(1, 7, output(2), pop, flowtable.Action{Op: flowtable.OpRecirc, U32: 8})
		install(2, 8, output(2))
		f := large(0xa, n)
		if cut == 0 {
			f = large(0xa, 1000)
		}
		undone, o := undo(f, cut)
		r.rx(1).InjectUndone(undone, o)
		r.turn()
		plain := [][]byte{f}
		if cut != 0 {
			plain = twinCut(f, cut)
		}
		var labelled [][]byte
		for _, s := range plain {
			labelled = append(labelled, twinSet(s, push, 0))
		}
		sameFrames(t, "port 5", r.tx(5).TakeAll(), labelled)
		sameFrames(t, "port 2", r.tx(2).TakeAll(), append(labelled, plain...))
		r.drops(nil)
	}
}

// A held frame keeps an unfinished offload behind a pushed label stack entry, both if it waits for its
// flow and if it waits for a tunnel's neighbour.
func TestHeldMPLSOnLargeFrame(t *testing.T) {
	push := flowtable.Action{Op: flowtable.OpPushMPLS, U16: packet.EtherTypeMPLS, U32: 0x00005140}
	for _, cut := range []int{1400, 0} {
		f, plain := large(0xa, 1000), [][]byte{large(0xa, 1000)}
		if cut != 0 {
			f = large(0xa, 5000)
			plain = twinCut(f, cut)
		}
		var labelled [][]byte
		for _, s := range plain {
			labelled = append(labelled, twinSet(s, push, 0))
		}
		undone, o := undo(f, cut)

		r := withOffloads(t)
		install := func(slot, id uint32, list ...flowtable.Action) {
			key, mask := flowtable.Key{flowtable.WPort: 1<<32 | uint64(id)}, flowtable.Key{flowtable.WPort: ^uint64(0)}
			r.command(AppendInstall(nil, slot, &key, &mask, list))
		}
		install(0, 0, push, flowtable.Action{Op: flowtable.OpRecirc, U32: 7})
		r.rx(1).InjectUndone(undone, o)
		r.turn()
		up := r.mustUpcall(UpMiss)
		install(1, 7, output(5), output(2))
		r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
		r.turn()
		sameFrames(t, "port 5", r.tx(5).TakeAll(), labelled)
		sameFrames(t, "port 2", r.tx(2).TakeAll(), labelled)
		r.drops(nil)

		r = withTunnel(t, tunnel.TemplatePending)
		r.install(0, 1, 0xa, push, toTunnel(77))
		r.rx(1).InjectUndone(undone, o)
		r.turn()
		up = r.mustUpcall(UpNeighbour)
		tmpl := r.sh.Templates[1]
		tmpl.State = tunnel.TemplateReady
		r.command(AppendTemplate(nil, 1, &tmpl))
		r.command(AppendCommand(nil, CmdRetry, up.Arg, nil))
		r.turn()
		var inner [][]byte
		for _, w := range r.tx(uplinkPort).TakeAll() {
			inner = append(inner, w[50:])
		}
		sameFrames(t, "uplink", inner, labelled)
		r.drops(nil)
	}
}
