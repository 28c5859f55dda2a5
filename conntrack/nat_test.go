// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"net/netip"
	"testing"

	"weft/packet"
)

func natTo(kind NATKind, lo, hi string, ports ...uint16) Request {
	req := commit
	a := netip.MustParseAddr(lo)
	req.NAT = NAT{Kind: kind, IPv6: a.Is6(), Lo: addrWords(a), Hi: addrWords(netip.MustParseAddr(hi))}
	if len(ports) == 2 {
		req.NAT.PortLo, req.NAT.PortHi = ports[0], ports[1]
	}
	return req
}

var bare = Request{Zone: 1, NAT: NAT{Kind: NATBare}}

func sameBytes(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("got\n%x, want\n%x", got, want)
	}
}

// A frame after source translation equals a frame that was made with the translated addresses, for every
// protocol and both directions.
func TestSNAT(t *testing.T) {
	for _, v := range []struct{ guest, server, outside, lo string }{
		{guest, server, "192.0.2.1:1000", "192.0.2.1"},
		{guest6, srv6, "[2001:db8::1]:1000", "2001:db8::1"},
	} {
		r := newRig(t, 64)
		req := natTo(NATSrc, v.lo, v.lo)
		out := r.expect(udpFrame(v.guest, v.server, 33), req, Tracked|New|SNAT)
		sameBytes(t, out, udpFrame(v.outside, v.server, 33))
		out = r.expect(udpFrame(v.server, v.outside, 21), bare, Tracked|Established|Reply|DNAT)
		sameBytes(t, out, udpFrame(v.server, v.guest, 21))
		out = r.expect(udpFrame(v.guest, v.server, 33), req, Tracked|Established|SNAT)
		sameBytes(t, out, udpFrame(v.outside, v.server, 33))
		// ct without nat leaves the frame unchanged.
		out = r.expect(udpFrame(v.guest, v.server, 33), look, Tracked|Established)
		sameBytes(t, out, udpFrame(v.guest, v.server, 33))
		// A second ct action does not translate the frame again.
		r.send(udpFrame(v.server, v.outside, 21), bare)
		_, out = r.repeat(req)
		sameBytes(t, out, udpFrame(v.server, v.guest, 21))
		check(t, r.tr.Table)
	}
}

func TestDNAT(t *testing.T) {
	for _, v := range []struct{ guest, service, server, lo string }{
		{guest, "192.0.2.1:80", "10.0.1.1:8080", "10.0.1.1"},
		{guest6, "[2001:db8::1]:80", "[fd01::1]:8080", "fd01::1"},
	} {
		r := newRig(t, 64)
		req := natTo(NATDst, v.lo, v.lo, 8080, 8080)
		s := tcpSegment{flags: "S", seq: 5, window: 100, scale: -1}
		out := r.expect(tcpFrame(v.guest, v.service, s), req, Tracked|New|DNAT)
		sameBytes(t, out, tcpFrame(v.guest, v.server, s))
		s = tcpSegment{flags: "SA", seq: 5, ack: 6, window: 100, scale: -1}
		out = r.expect(tcpFrame(v.server, v.guest, s), bare, Tracked|Established|Reply|SNAT)
		sameBytes(t, out, tcpFrame(v.service, v.guest, s))
		check(t, r.tr.Table)
	}
}

// Two guests behind one address use the same port. NAT assigns another port or ICMP
// identifier to the second guest. Each guest gets the answers to its own frames.
func TestNATCollision(t *testing.T) {
	r := newRig(t, 256)
	req := natTo(NATSrc, "192.0.2.1", "192.0.2.1")
	seen := map[string]bool{}
	for i := range 50 {
		sender := "10.0.0." + port(i+1) + ":1000"
		out := r.expect(udpFrame(sender, server, 8), req, Tracked|New|SNAT)
		outside := "192.0.2.1:" + port(int(out[34])<<8|int(out[35]))
		sameBytes(t, out, udpFrame(outside, server, 8))
		if seen[outside] {
			t.Fatalf("two guests have the translation %s", outside)
		}
		seen[outside] = true
		back := r.expect(udpFrame(server, outside, 8), bare, Tracked|Established|Reply|DNAT)
		sameBytes(t, back, udpFrame(server, sender, 8))
	}
	ids := map[uint16]bool{}
	for i := range 50 {
		sender := "10.0.0." + port(i+1)
		out := r.expect(icmpFrame(sender, "10.0.1.1", 8, 0, 77), req, Tracked|New|SNAT)
		id := uint16(out[38])<<8 | uint16(out[39])
		sameBytes(t, out, icmpFrame("192.0.2.1", "10.0.1.1", 8, 0, id))
		if ids[id] {
			t.Fatalf("two guests have the identifier %d", id)
		}
		ids[id] = true
		back := r.expect(icmpFrame("10.0.1.1", "192.0.2.1", 0, 0, id), bare, Tracked|Established|Reply|DNAT)
		sameBytes(t, back, icmpFrame("10.0.1.1", sender, 0, 0, 77))
	}
	check(t, r.tr.Table)
}

// Translated ports of many guests spread over the range, so that searches are short.
func TestNATSpreads(t *testing.T) {
	r := newRig(t, 4096)
	req := natTo(NATSrc, "192.0.2.1", "192.0.2.1")
	for i := range 3000 {
		sender := "10." + port(i/256) + ".0." + port(i%256) + ":1000"
		r.expect(udpFrame(sender, server, 8), req, Tracked|New|SNAT)
	}
	check(t, r.tr.Table)
}

// NAT uses only the given ports, and refuses a connection if all are in use.
func TestNATPortRange(t *testing.T) {
	for _, flag := range []string{"", "random", "hash"} {
		r := newRig(t, 256)
		req := natTo(NATSrc, "192.0.2.1", "192.0.2.2", 5000, 5009)
		req.NAT.Random, req.NAT.Hash = flag == "random", flag == "hash"
		used := map[string]bool{}
		for i := range 20 {
			out := r.expect(udpFrame("10.0.0.1:"+port(i+1), server, 8), req, Tracked|New|SNAT)
			p := int(out[34])<<8 | int(out[35])
			key := string(out[26:30]) + port(p)
			if p < 5000 || p > 5009 || used[key] {
				t.Fatalf("%s: port %d is outside the range", flag, p)
			}
			used[key] = true
		}
		m, out := r.send(udpFrame("10.0.0.1:99", server, 8), req)
		if m.Drop != packet.DropNATExhausted {
			t.Fatalf("drop reason %v with the range used up", m.Drop)
		}
		sameBytes(t, out, udpFrame("10.0.0.1:99", server, 8))
		check(t, r.tr.Table)
	}
}

// With persistent, the translated address depends only on the guest's address. It is
// the same in every table.
func TestNATPersistent(t *testing.T) {
	req := natTo(NATSrc, "192.0.2.0", "192.0.2.255")
	req.NAT.Persistent = true
	used := map[string]bool{}
	for i := range 20 {
		got := map[string]bool{}
		for j := range 5 {
			r := newRig(t, 64)
			r.tr.head.seeds[10] += uint64(j)
			r.tr.head.seeds[11] += uint64(j)
			out := r.expect(udpFrame("10.0.0."+port(i+1)+":9", "10.0.1."+port(j+1)+":9", 8), req, Tracked|New|SNAT)
			got[string(out[26:30])] = true
			used[string(out[26:30])] = true
		}
		if len(got) != 1 {
			t.Fatalf("guest %d has %d addresses, want 1", i, len(got))
		}
	}
	if len(used) < 15 {
		t.Fatalf("20 guests share %d addresses of 256", len(used))
	}
}

// nat(src=0.0.0.0) keeps the address. It changes the port only if another connection has the reply tuple.
func TestNATOfCollisionAlone(t *testing.T) {
	r := newRig(t, 64)
	dnat := natTo(NATDst, "10.0.1.1", "10.0.1.1", 80, 80)
	zero := commit
	zero.NAT = NAT{Kind: NATSrc}
	r.expect(udpFrame(guest, "192.0.2.1:80", 8), dnat, Tracked|New|DNAT)
	out := r.expect(udpFrame(guest, server, 8), zero, Tracked|New|SNAT)
	if p := int(out[34])<<8 | int(out[35]); p < 1024 || p == 1000 {
		t.Fatalf("unexpected port %d", p)
	}
	sameBytes(t, r.expect(udpFrame("10.0.0.2:1000", server, 8), zero, Tracked|New), udpFrame("10.0.0.2:1000", server, 8))
	// Without nat the connection is refused.
	if m, _ := r.send(udpFrame("10.0.0.3:1000", server, 8), commit); m.Drop != packet.DropNone {
		t.Fatalf("unexpected drop reason %v", m.Drop)
	}
	r.expect(udpFrame("10.0.0.4:5", "192.0.2.1:80", 8), dnat, Tracked|New|DNAT)
	if m, _ := r.send(udpFrame("10.0.0.4:5", server, 8), commit); m.Drop != packet.DropNATExhausted {
		t.Fatalf("unexpected drop reason %v", m.Drop)
	}
	check(t, r.tr.Table)
}

// NAT finds the free ports in a range that begins with a block of used ones.
func TestPortsBesideABlock(t *testing.T) {
	r := newRig(t, 1<<14)
	req := commit
	req.NAT = NAT{Kind: NATSrc, Lo: [2]uint64{0, 0xc0000201}, Hi: [2]uint64{0, 0xc0000201}}
	for _, sender := range []string{"10.0.0.1:", "10.0.0.2:"} {
		for i := range 2000 {
			if m, _ := r.send(udpFrame(sender+port(1024+i), server, 18), req); m.Drop != packet.DropNone || m.State&SNAT == 0 {
				t.Fatalf("%s%d: ct_state %s, drop reason %v", sender, 1024+i, stateText(m.State), m.Drop)
			}
		}
	}
	check(t, r.tr.Table)
}

// An ICMP identifier that is in use is translated to the next free one among the following
// nextIdentifiers, and otherwise to any free one.
func TestNextICMPIdentifier(t *testing.T) {
	r := newRig(t, 64)
	req := natTo(NATSrc, "192.0.2.1", "192.0.2.1")
	for i := range 1 + nextIdentifiers + 3 {
		out := r.expect(icmpFrame("10.0.0."+port(i+1), "10.0.1.1", 8, 0, 0xfffe), req, Tracked|New|SNAT)
		id := uint16(out[38])<<8 | uint16(out[39])
		if next := uint16(0xfffe + i); i <= nextIdentifiers && id != next {
			t.Errorf("connection %d has identifier %d, want %d", i, id, next)
		}
	}
	check(t, r.tr.Table)
}

// The arguments random and hash of nat choose only ports. An ICMP identifier stays if it is free, as in Open
// vSwitch.
func TestICMPIdentifierStays(t *testing.T) {
	for _, nat := range []NAT{{Random: true}, {Hash: true}, {}} {
		r := newRig(t, 64)
		nat.Kind, nat.Lo = NATSrc, [2]uint64{0, 0xc0000201}
		req := commit
		req.NAT = nat
		r.expect(icmpFrame("10.0.0.1", "10.0.1.1", 8, 0, 7), req, Tracked|New|SNAT)
		r.expect(icmpFrame("10.0.1.1", "192.0.2.1", 0, 0, 7), look, Tracked|Established|Reply)
	}
}
