// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"testing"

	"weft/packet"
)

const (
	guest  = "10.0.0.1:1000"
	server = "10.0.1.1:80"
	guest6 = "[fd00::1]:1000"
	srv6   = "[fd01::1]:80"
)

var (
	look   = Request{Zone: 1}
	commit = Request{Zone: 1, Commit: true}
)

// The frames of a committed UDP connection are new until an answer makes the connection established.
// Without a commit, they stay new.
func TestUDPStates(t *testing.T) {
	for _, ends := range [][2]string{{guest, server}, {guest6, srv6}} {
		r := newRig(t, 64)
		out, back := udpFrame(ends[0], ends[1], 20), udpFrame(ends[1], ends[0], 20)
		r.expect(out, look, Tracked|New)
		r.expect(back, look, Tracked|New)
		r.expect(out, commit, Tracked|New)
		r.expect(out, look, Tracked|New)
		r.expect(out, Request{Zone: 2}, Tracked|New) // another zone
		r.expect(back, look, Tracked|Established|Reply)
		r.expect(out, look, Tracked|Established)
		r.expect(back, look, Tracked|Established|Reply)
		check(t, r.tr.Table)
		if n := r.tr.Count(); n != 1 {
			t.Fatalf("unexpected number of connections: %d", n)
		}
	}
}

// A TCP connection goes from SYN to TIME-WAIT. Then a new connection uses the same
// ports.
func TestTCPStates(t *testing.T) {
	for _, ends := range [][2]string{{guest, server}, {guest6, srv6}} {
		r := newRig(t, 64)
		a := func(s tcpSegment, req Request, state uint8) {
			t.Helper()
			r.expect(tcpFrame(ends[0], ends[1], s), req, state)
		}
		b := func(s tcpSegment, state uint8) {
			t.Helper()
			r.expect(tcpFrame(ends[1], ends[0], s), look, state)
		}
		is := func(want TCPState) {
			t.Helper()
			r.tr.Each(r.now, func(e *Entry) bool {
				if e.State != want {
					t.Fatalf("state %v, expected %v", e.State, want)
				}
				return true
			})
		}
		for range 2 {
			a(tcpSegment{flags: "S", seq: 100, window: 1000, scale: 2}, commit, Tracked|New)
			is(stateSynSent)
			a(tcpSegment{flags: "A", seq: 101, ack: 501, window: 1000}, look, Tracked|Invalid)
			b(tcpSegment{flags: "SA", seq: 500, ack: 101, window: 1000, scale: 3}, Tracked|Established|Reply)
			is(stateSynRecv)
			a(tcpSegment{flags: "A", seq: 101, ack: 501, window: 1000}, look, Tracked|Established)
			is(stateEstablished)
			a(tcpSegment{flags: "AP", seq: 101, ack: 501, window: 1000, payload: 100}, look, Tracked|Established)
			b(tcpSegment{flags: "A", seq: 501, ack: 201, window: 1000, payload: 1000}, Tracked|Established|Reply)
			b(tcpSegment{flags: "A", seq: 90501, ack: 201, window: 1000}, Tracked|Invalid)
			b(tcpSegment{flags: "A", seq: 1501, ack: 20001, window: 1000}, Tracked|Invalid)
			b(tcpSegment{flags: "R", seq: 9000000, window: 0}, Tracked|Invalid)
			a(tcpSegment{flags: "AF", seq: 201, ack: 1501, window: 1000}, look, Tracked|Established)
			is(stateFinWait1)
			b(tcpSegment{flags: "A", seq: 1501, ack: 202, window: 1000}, Tracked|Established|Reply)
			is(stateCloseWait)
			b(tcpSegment{flags: "AF", seq: 1501, ack: 202, window: 1000}, Tracked|Established|Reply)
			is(stateLastAck)
			a(tcpSegment{flags: "A", seq: 202, ack: 1502, window: 1000}, look, Tracked|Established)
			is(stateTimeWait)
			check(t, r.tr.Table)
		}
		a(tcpSegment{flags: "S", seq: 100, window: 1000, scale: -1}, commit, Tracked|New)
		b(tcpSegment{flags: "RA", seq: 0, ack: 101}, Tracked|Established|Reply)
		is(stateClosed)
	}
}

// If the tracker has not seen the beginning of a TCP connection, it does not check windows. A segment with
// invalid flags, or SYN+ACK, begins no connection.
func TestTCPFromTheMiddle(t *testing.T) {
	r := newRig(t, 64)
	r.expect(tcpFrame(server, guest, tcpSegment{flags: "SA", seq: 9, ack: 7, scale: -1}), commit, Tracked|Invalid)
	r.expect(tcpFrame(guest, server, tcpSegment{flags: "SF", seq: 9, scale: -1}), commit, Tracked|Invalid)
	r.expect(tcpFrame(guest, server, tcpSegment{flags: "", seq: 9, scale: -1}), commit, Tracked|Invalid)
	r.expect(tcpFrame(guest, server, tcpSegment{flags: "R", seq: 9, scale: -1}), commit, Tracked|Invalid)
	r.expect(tcpFrame(guest, server, tcpSegment{flags: "A", seq: 9, ack: 7, window: 5, payload: 100}), commit, Tracked|New)
	r.expect(tcpFrame(server, guest, tcpSegment{flags: "A", seq: 7, ack: 109, window: 5, payload: 1400}), look, Tracked|Established|Reply)
	r.expect(tcpFrame(guest, server, tcpSegment{flags: "A", seq: 90000, ack: 1407}), look, Tracked|Established)
}

// Without the check of TCP windows, a segment outside of the window is accepted.
func TestLiberal(t *testing.T) {
	r := newRig(t, 64)
	r.expect(tcpFrame(guest, server, tcpSegment{flags: "S", seq: 1, scale: -1}), commit, Tracked|New)
	r.expect(tcpFrame(server, guest, tcpSegment{flags: "SA", seq: 1, ack: 2, window: 100, scale: -1}), look, Tracked|Established|Reply)
	far := tcpFrame(guest, server, tcpSegment{flags: "A", seq: 1 << 30, ack: 2})
	r.expect(far, look, Tracked|Invalid)
	r.tr.SetLiberal(true)
	r.expect(far, look, Tracked|Established)
}

func TestICMPStates(t *testing.T) {
	for _, v := range []struct {
		a, b          string
		ask, answer   uint8
		unknown, kind uint8
	}{{"10.0.0.1", "10.0.1.1", 8, 0, 9, 3}, {"fd00::1", "fd01::1", 128, 129, 135, 1}} {
		r := newRig(t, 64)
		ask, answer := icmpFrame(v.a, v.b, v.ask, 0, 5), icmpFrame(v.b, v.a, v.answer, 0, 5)
		r.expect(answer, commit, Tracked|Invalid)
		r.expect(ask, commit, Tracked|New)
		r.expect(icmpFrame(v.b, v.a, v.answer, 0, 6), look, Tracked|Invalid)
		r.expect(icmpFrame(v.b, v.a, v.ask, 0, 5), look, Tracked|New) // a query in the reply direction is a new connection
		r.expect(answer, look, Tracked|Established|Reply)
		r.expect(ask, look, Tracked|Established)
		check(t, r.tr.Table)
	}
}

func TestOtherProtocols(t *testing.T) {
	r := newRig(t, 64)
	r.expect(otherFrame(47, "10.0.0.1", "10.0.1.1"), commit, Tracked|New)
	r.expect(otherFrame(50, "10.0.1.1", "10.0.0.1"), look, Tracked|New)
	r.expect(otherFrame(47, "10.0.1.1", "10.0.0.1"), look, Tracked|Established|Reply)
	r.expect(otherFrame(47, "fd00::1", "fd00::2"), commit, Tracked|New)
	r.expect(otherFrame(47, "fd00::2", "fd00::1"), look, Tracked|Established|Reply)
}

// A frame that is not IP cannot be tracked.
func TestNotIP(t *testing.T) {
	r := newRig(t, 64)
	arp := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5}, make([]byte, 46)...)
	r.expect(arp, commit, Tracked|Invalid)
}

// Only a commit sets the mark and the label, under their masks and for both
// directions.
func TestMarkAndLabel(t *testing.T) {
	r := newRig(t, 64)
	out, back := udpFrame(guest, server, 1), udpFrame(server, guest, 1)
	req := commit
	req.Mark, req.MarkMask = 0xff, 0xff
	req.Label, req.LabelMask = [2]uint64{1, 2}, [2]uint64{^uint64(0), ^uint64(0)}
	see := func(m Meta, mark uint32, label [2]uint64) {
		t.Helper()
		if m.Mark != mark || m.Label != label {
			t.Fatalf("mark %#x, label %#x; want %#x, %#x", m.Mark, m.Label, mark, label)
		}
	}
	m, _ := r.send(out, look)
	see(m, 0, [2]uint64{})
	m, _ = r.send(out, req)
	see(m, 0xff, [2]uint64{1, 2})
	m, _ = r.send(back, look)
	see(m, 0xff, [2]uint64{1, 2})
	before := m.Ref
	req.Mark, req.MarkMask, req.LabelMask = 0x1200, 0xff00, [2]uint64{0, 0}
	m, _ = r.send(back, req)
	see(m, 0x12ff, [2]uint64{1, 2})
	if m.Ref == before {
		t.Fatal("the mark changed, but the generation did not")
	}
	before = m.Ref
	if m, _ = r.send(back, req); m.Ref != before {
		t.Fatal("the generation changed without a change of mark or label")
	}
	m, _ = r.send(out, look)
	see(m, 0x12ff, [2]uint64{1, 2})
}

// The original tuple in a Meta is the tuple of the frame that began the connection.
func TestOriginalTuple(t *testing.T) {
	r := newRig(t, 64)
	r.expect(udpFrame(guest, server, 1), commit, Tracked|New)
	m, _ := r.send(udpFrame(server, guest, 1), look)
	src, dst := m.Orig.Addrs()
	if src != end(guest).Addr() || dst != end(server).Addr() || m.Orig.SrcPort != 1000 || m.Orig.DstPort != 80 || m.Orig.Proto != 17 {
		t.Fatalf("unexpected original tuple %+v", m.Orig)
	}
	m, _ = r.send(udpFrame(srv6, guest6, 1), look)
	if src, _ := m.Orig.Addrs(); src != end(srv6).Addr() {
		t.Fatalf("unexpected original tuple %+v", m.Orig)
	}
}

// A commit with force in the reply direction begins a new connection in this
// direction.
func TestForce(t *testing.T) {
	r := newRig(t, 64)
	out, back := udpFrame(guest, server, 1), udpFrame(server, guest, 1)
	force := commit
	force.Force = true
	r.expect(out, force, Tracked|New)
	r.expect(back, commit, Tracked|Established|Reply)
	r.expect(out, force, Tracked|Established)
	r.expect(back, force, Tracked|New)
	r.expect(out, look, Tracked|Established|Reply)
	// Force also replaces the connection of a frame that was already looked up.
	r.send(out, look)
	if m, _ := r.repeat(force); m.State != Tracked|New {
		t.Fatalf("unexpected ct_state %s", stateText(m.State))
	}
	check(t, r.tr.Table)
}

// A frame that is tracked twice in one zone keeps its connection.
func TestTwice(t *testing.T) {
	r := newRig(t, 64)
	r.send(udpFrame(guest, server, 1), look)
	if m, _ := r.repeat(commit); m.State != Tracked|New || r.tr.Count() != 1 {
		t.Fatalf("ct_state %s, %d connections", stateText(m.State), r.tr.Count())
	}
	mark := commit
	mark.Mark, mark.MarkMask = 3, 3
	r.send(udpFrame(server, guest, 1), look)
	if m, _ := r.repeat(mark); m.State != Tracked|Established|Reply || m.Mark != 3 {
		t.Fatalf("ct_state %s, mark %d", stateText(m.State), m.Mark)
	}
}

// If an action changes the tuple of a frame between two ct actions, the frame belongs to the connection of
// its new tuple.
func TestRewrittenInBetween(t *testing.T) {
	for _, v := range []struct{ guest, server, lo string }{
		{guest, server, "192.0.2.1"},
		{guest6, srv6, "2001:db8::1"},
	} {
		for _, req := range []Request{commit, natTo(NATSrc, v.lo, v.lo)} {
			r := newRig(t, 64)
			r.send(udpFrame(v.guest, v.server, 1), req)
			first := r.metas[0].Ref
			r.b.Frames[0].SetTpDst(4000)
			m, _ := r.repeat(commit)
			if m.State != Tracked|New || m.Ref == first || m.Orig.DstPort != 4000 || r.tr.Count() != 2 {
				t.Fatalf("ct_state %s of %+v, %d connections; want a new one to port 4000", stateText(m.State), m.Orig, r.tr.Count())
			}
			// The destination port is set back, so the frame belongs to its first connection
			// again.
			r.b.Frames[0].SetTpDst(end(v.server).Port())
			if m, _ = r.repeat(look); m.Ref != first && req.NAT.Kind == NATNone {
				t.Fatalf("the frame has connection %v, want %v", m.Ref, first)
			}
			check(t, r.tr.Table)
		}
	}
}

// A connection ends after the timeout of its zone. Either a frame or the sweep finds
// that it has expired.
func TestTimeouts(t *testing.T) {
	r := newRig(t, 64)
	short := DefaultTimeouts
	short[udpFirst], short[udpMultiple] = 5, 7
	r.tr.SetPolicy(3, &short)
	r.tr.SetZonePolicy(1, 3)
	out, back := udpFrame(guest, server, 1), udpFrame(server, guest, 1)
	r.expect(out, commit, Tracked|New)
	r.now += 4 * second
	r.expect(back, look, Tracked|Established|Reply)
	r.now += 6 * second
	r.expect(back, look, Tracked|Established|Reply)
	r.now += 7*second - 1
	r.expect(back, look, Tracked|Established|Reply)
	r.now += 7*second + 7*second/128
	r.expect(back, look, Tracked|New)
	r.expect(out, commit, Tracked|New)
	check(t, r.tr.Table)
	if n := r.tr.Counters().Expired; n != 1 {
		t.Fatalf("unexpected number of expired connections: %d", n)
	}
	r.now += 6 * second
	r.tr.Sweep(r.now)
	for i := 0; r.tr.Count() > 0; i++ {
		if i == 1000 {
			t.Fatal("the sweep did not find the expired connection")
		}
		r.now += second
		r.tr.Sweep(r.now)
	}
	check(t, r.tr.Table)
}

// If a table is full, a new connection evicts one without an answer. If all are answered, a new connection of
// the same port is refused.
func TestLimits(t *testing.T) {
	r := newRig(t, 64)
	at := func(i int) (string, string) { return end(guest).String()[:len(guest)-4] + port(1000+i), server }
	establish := func(i int, zone uint16) {
		a, b := at(i)
		r.expect(udpFrame(a, b, 1), Request{Zone: zone, Commit: true}, Tracked|New)
		r.expect(udpFrame(b, a, 1), Request{Zone: zone}, Tracked|Established|Reply)
	}
	for i := range 20 {
		establish(i, 1)
	}
	for i := range 500 { // a flood in zone 2
		a, b := at(i)
		r.expect(tcpFrame(a, b, tcpSegment{flags: "S", scale: -1}), Request{Zone: 2, Commit: true}, Tracked|New)
	}
	check(t, r.tr.Table)
	if r.tr.Count() != 64 || r.tr.ZoneCount(1) != 20 {
		t.Fatalf("%d connections, %d in zone 1", r.tr.Count(), r.tr.ZoneCount(1))
	}
	for i := 20; i < 64; i++ {
		establish(i, 1)
	}
	a, b := at(64)
	if m, _ := r.send(udpFrame(a, b, 1), commit); m.Drop != packet.DropConnLimit {
		t.Fatalf("unexpected drop reason %v", m.Drop)
	}
	check(t, r.tr.Table)
}

func TestZoneLimit(t *testing.T) {
	r := newRig(t, 1024)
	r.tr.SetDefaultZoneLimit(3)
	r.tr.SetZoneLimit(7, 5)
	for zone, want := range map[uint16]int{1: 3, 7: 5} {
		for i := range 20 {
			r.expect(udpFrame("10.0.0.1:"+port(i+1), server, 1), Request{Zone: zone, Commit: true}, Tracked|New)
		}
		if n := r.tr.ZoneCount(zone); n != want {
			t.Fatalf("zone %d has %d connections", zone, n)
		}
	}
	check(t, r.tr.Table)
}

// A zone whose own limit is 0 takes no new connection, and keeps its old ones.
func TestZoneLimitOfZero(t *testing.T) {
	r := newRig(t, 1024)
	r.expect(udpFrame("10.0.0.1:1", server, 1), Request{Zone: 7, Commit: true}, Tracked|New)
	r.tr.SetZoneLimit(7, 0)
	if m, _ := r.send(udpFrame("10.0.0.1:2", server, 1), Request{Zone: 7, Commit: true}); m.Drop != packet.DropConnLimit {
		t.Fatalf("drop reason %v, want %v", m.Drop, packet.DropConnLimit)
	}
	r.expect(udpFrame("10.0.0.1:2", server, 1), Request{Zone: 8, Commit: true}, Tracked|New)
	if _, refused := r.tr.ZoneLosses(7); r.tr.ZoneCount(7) != 1 || refused != 1 {
		t.Fatalf("zone 7 has %d connections and refused %d", r.tr.ZoneCount(7), refused)
	}
	r.tr.ClearZoneLimit(7)
	r.expect(udpFrame("10.0.0.1:2", server, 1), Request{Zone: 7, Commit: true}, Tracked|New)
	check(t, r.tr.Table)
}

// Process allocates no memory, whatever frames the batch has.
func TestProcessAllocatesNothing(t *testing.T) {
	r := newRig(t, 1024)
	r.put(udpFrame(guest, server, 1))
	req := commit
	req.NAT = NAT{Kind: NATSrc, Lo: [2]uint64{0, 0x0a090909}}
	order := []uint8{0}
	if n := testing.AllocsPerRun(1000, func() {
		r.metas[0] = Meta{}
		r.tr.Forget(^uint32(0))
		r.tr.Process(&r.b, order, &r.metas, &req, r.now)
		r.now += second
		r.tr.Sweep(r.now)
	}); n != 0 {
		t.Fatalf("%v allocations for each batch, want 0", n)
	}
}
