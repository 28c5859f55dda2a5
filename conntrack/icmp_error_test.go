// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"math/rand"
	"net/netip"
	"testing"

	"weft/packet"
)

func datagramOf(frame []byte, n int) []byte {
	header := packet.IPv4Len
	if frame[12] == 0x86 {
		header = packet.IPv6Len
	}
	return frame[14:min(len(frame), 14+header+n)]
}

// errorFrame returns an ICMP error from src to dst about the datagram in frame.
func errorFrame(src, dst netip.Addr, kind, code uint8, frame []byte, n int) []byte {
	return icmpRaw(src, dst, kind, code, append(make([]byte, 4), datagramOf(frame, n)...))
}

// An ICMP error is related to the connection of the datagram that it carries, in the opposite direction. If
// there is no such connection, it is invalid.
func TestICMPErrors(t *testing.T) {
	for _, v := range []struct {
		guest, server, router string
		kind                  uint8
	}{{guest, server, "10.9.9.9", 3}, {guest6, srv6, "fd99::9", 1}} {
		r := newRig(t, 64)
		sender, router := end(v.guest).Addr(), netip.MustParseAddr(v.router)
		out := udpFrame(v.guest, v.server, 40)
		unreachable := errorFrame(router, sender, v.kind, 1, out, 8)
		r.expect(unreachable, look, Tracked|Invalid)
		r.expect(unreachable, commit, Tracked|Invalid)
		req := commit
		req.Mark, req.MarkMask = 9, 9
		r.expect(out, req, Tracked|New)
		m, _ := r.send(unreachable, look)
		if m.State != Tracked|Related|Reply || m.Mark != 9 || m.Orig.Proto != 17 {
			t.Fatalf("unexpected ct_state %s, mark %d or original protocol %d", stateText(m.State), m.Mark, m.Orig.Proto)
		}
		r.expect(udpFrame(v.server, v.guest, 4), look, Tracked|Established|Reply)
		r.expect(errorFrame(sender, end(v.server).Addr(), v.kind, 3, udpFrame(v.server, v.guest, 4), 8), look, Tracked|Related)
		// The datagram inside the error ends before its ports.
		r.expect(errorFrame(router, sender, v.kind, 1, out, 7), look, Tracked|Invalid)
		if r.tr.Count() != 1 {
			t.Fatalf("unexpected number of connections: %d", r.tr.Count())
		}
	}
}

// FuzzICMPErrorNAT checks that a translated ICMP error equals the ICMP error about the
// translated datagram.
func FuzzICMPErrorNAT(f *testing.F) {
	for seed := range int64(40) {
		f.Add(seed, uint8(seed), uint8(8+seed))
	}
	f.Fuzz(func(t *testing.T, seed int64, shape, carried uint8) { tryICMPError(t, seed, shape, carried) })
}

func tryICMPError(t *testing.T, seed int64, shape, carried uint8) {
	rng := rand.New(rand.NewSource(seed))
	v6, reply, tcp, dst, ping := shape&1 != 0, shape&2 != 0, shape&4 != 0, shape&8 != 0, shape&16 != 0
	g, s, n, kind, router := "10.0.0.1", "10.0.1.1", "192.0.2.1", uint8(3), "10.9.9.9"
	if v6 {
		g, s, n, kind, router = "fd00::1", "fd01::1", "2001:db8::1", 1, "fd99::9"
	}
	random := func(a string) string {
		return netip.AddrPortFrom(netip.MustParseAddr(a), uint16(rng.Intn(65535)+1)).String()
	}
	a, b := random(g), random(s)
	id := uint16(rng.Intn(65536))
	payload := rng.Intn(60)
	frame := func(a, b string, answer bool) []byte {
		switch {
		case ping:
			kind := uint8(8)
			if answer {
				kind = 0
			}
			if v6 {
				kind = 128 + kind>>3 ^ 1
			}
			return icmpFrame(end(a).Addr().String(), end(b).Addr().String(), kind, 0, id)
		case tcp:
			s := tcpSegment{flags: "S", seq: 77, window: 99, scale: -1, payload: payload}
			if answer {
				s.flags, s.ack = "SA", 78+uint32(payload)
			}
			return tcpFrame(a, b, s)
		}
		return udpFrame(a, b, payload)
	}
	if n2 := random(n); true { // address that NAT chooses, possibly with a port
		r := newRig(t, 64)
		req := natTo(NATSrc, n, n, end(n2).Port(), end(n2).Port())
		far, near := [2]string{n2, b}, [2]string{a, b} // the datagram's source and destination after and before NAT
		if dst {
			req.NAT.Kind = NATDst
			far, near = [2]string{a, n2}, [2]string{a, b}
		}
		if m, out := r.send(frame(near[0], near[1], false), req); m.State&(SNAT|DNAT) == 0 {
			t.Fatalf("unexpected ct_state %s or drop reason %v", stateText(m.State), m.Drop)
		} else {
			sameBytes(t, out, frame(far[0], far[1], false))
		}
		size := int(carried)
		size = max(size, 8)
		if tcp && size == 17 {
			size = 16 // the datagram is cut before its checksum, because half a checksum cannot be updated
		}
		if !reply { // an ICMP error about the guest's datagram
			sender := netip.MustParseAddr(router)
			got := errorFrame(sender, end(far[0]).Addr(), kind, 1, frame(far[0], far[1], false), size)
			outer := sender
			state := uint8(Tracked | Related | Reply | DNAT)
			if dst {
				outer, state = end(near[1]).Addr(), Tracked|Related|Reply|SNAT
			}
			want := errorFrame(outer, end(near[0]).Addr(), kind, 1, frame(near[0], near[1], false), size)
			sameError(t, r.expect(got, bare, state), want)
			return
		}
		// An ICMP error about the server's answer.
		r.send(frame(far[1], far[0], true), bare)
		state := uint8(Tracked | Related | SNAT)
		if dst {
			state = Tracked | Related | DNAT
		}
		got := errorFrame(end(near[0]).Addr(), end(near[1]).Addr(), kind, 3, frame(near[1], near[0], true), size)
		want := errorFrame(end(far[0]).Addr(), end(far[1]).Addr(), kind, 3, frame(far[1], far[0], true), size)
		sameError(t, r.expect(got, bare, state), want)
	}
}

// sameError compares two ICMP errors. TCP and ICMP checksums of 0 and 0xffff are
// equal.
func sameError(t *testing.T, got, want []byte) {
	t.Helper()
	if string(got) == string(want) {
		return
	}
	if len(got) == len(want) {
		a, b := append([]byte(nil), got...), append([]byte(nil), want...)
		for _, frame := range [][]byte{a, b} {
			for i := 0; i+1 < len(frame); i += 2 {
				if binary.BigEndian.Uint16(frame[i:]) == 0xffff {
					binary.BigEndian.PutUint16(frame[i:], 0)
				}
			}
		}
		if string(a) == string(b) {
			return
		}
	}
	sameBytes(t, got, want)
}

func TestICMPErrorNAT(t *testing.T) {
	for seed := range int64(3000) {
		rng := rand.New(rand.NewSource(seed))
		tryICMPError(t, seed, uint8(rng.Intn(32)), uint8(rng.Intn(100)))
	}
}
