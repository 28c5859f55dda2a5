// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"weft/packet"
)

// SeekEnds finds the same connections as SeekFlows, whatever headers come before the IP header. SeekFlows
// skips fragments.
func TestSeekEnds(t *testing.T) {
	r := newRig(t, 64)
	const zone = 0xfedc
	for proto, plain := range map[uint8][]byte{
		packet.ProtoUDP: udpFrame("10.0.0.1:50000", "192.168.255.254:65535", 9),
		packet.ProtoTCP: tcpFrame("10.0.0.1:50000", "192.168.255.254:65535", tcpSegment{flags: "A", scale: 3}),
	} {
		ends := [packet.BatchSize]Ends{{Addresses: 0x0a000001<<32 | 0xc0a8fffe, Rest: 50000<<48 | 65535<<32 | uint64(proto)<<8}}
		snap := slices.Replace(slices.Clone(plain), 12, 14, 0, 0, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0)
		binary.BigEndian.PutUint16(snap[12:], uint16(len(snap)-14))
		options := slices.Insert(slices.Clone(plain), 34, 1, 1, 1, 0)
		options[14]++
		packet.IPv4(options[14:]).SetTotalLen(len(options) - 14)
		for name, frame := range map[string][]byte{
			"plain": plain, "SNAP": snap, "options": options,
			"VLAN": slices.Insert(slices.Clone(plain), 12, 0x81, 0, 0, 5),
			"QinQ": slices.Insert(slices.Clone(plain), 12, 0x88, 0xa8, 0, 5, 0x81, 0, 0, 6),
		} {
			r.put(frame)
			if order, _ := r.tr.SeekFlows(&r.b, 1, zone); len(order) != 1 {
				t.Fatalf("%s: SeekFlows skipped the frame", name)
			}
			want := r.tr.probes[0]
			r.tr.probes[0] = probe{kind: kindError, inner: 7}
			r.tr.Forget(1)
			order, _ := r.tr.SeekEnds(1, &ends, zone)
			if got := r.tr.probes[0]; got.words != want.words || got.hash != want.hash || got.kind != want.kind || got.inner != want.inner ||
				len(order) != 1 || !r.tr.Known(0, zone) {
				t.Errorf("%s of protocol %d: SeekEnds gives %+v, SeekFlows %+v", name, proto, got, want)
			}
		}
		packet.IPv4(plain[14:]).SetFlagsFrag(0x2000)
		r.put(plain)
		if order, _ := r.tr.SeekFlows(&r.b, 1, zone); len(order) != 0 {
			t.Errorf("SeekFlows returned a fragment of protocol %d", proto)
		}
	}
}

// SettleAll finds the hint of a connection wherever the connection's index entry is: first in its bucket,
// after another entry with the same signature, or after a full bucket. It also does so for IPv6.
func TestUsualWhereverFound(t *testing.T) {
	type place struct{ home, signature uint64 }
	at := func(r *rig, port int) place {
		o := Tuple{Src: addrWords(netip.MustParseAddr("10.0.0.1")), Dst: addrWords(netip.MustParseAddr("10.0.1.1")),
			SrcPort: uint16(port), DstPort: 80, Zone: 1, Proto: packet.ProtoUDP}
		hash := r.tr.head.hash(o.words(r.tr.head), &[4]uint64{})
		return place{hash & uint64(r.tr.wrap), signature(hash)}
	}
	// The last client of each list is looked up. Those before it take the place of its index entry.
	for name, clients := range map[string]func(r *rig) []string{
		"own": func(*rig) []string { return []string{"10.0.0.1:1"} },
		"signature": func(r *rig) []string {
			ports := map[place]int{}
			for p := 1; p < 1<<16; p++ {
				if other, ok := ports[at(r, p)]; ok {
					return []string{"10.0.0.1:" + port(other), "10.0.0.1:" + port(p)}
				}
				ports[at(r, p)] = p
			}
			return nil
		},
		"full": func(r *rig) (lines []string) {
			for p := 1; p < 1<<16 && len(lines) <= slots; p++ {
				if at(r, p).home == at(r, 1).home {
					lines = append(lines, "10.0.0.1:"+port(p))
				}
			}
			return lines
		},
		"IPv6": func(*rig) []string { return []string{guest6} },
	} {
		r := newRig(t, 64)
		var ref Ref
		var frame []byte
		for _, client := range clients(r) {
			to := server
			if name == "IPv6" {
				to = srv6
			}
			frame = udpFrame(client, to, 1)
			m, _ := r.send(frame, commit)
			ref = m.Ref
		}
		hints := make([]Hints, 64)
		hints[ref.Number][0] = Hint{Tag: 7, Generation: ref.Generation}
		for _, expected := range []uint32{7, 8} {
			r.put(frame)
			order, _ := r.tr.SeekFlows(&r.b, 1, 1)
			if first := r.tr.numbers[0]; (first == ref.Number) != (name == "own" || name == "IPv6") || (first == unsure) != (name == "full") {
				t.Fatalf("%s: the search begins with %d, the connection is %d", name, first, ref.Number)
			}
			var tags [packet.BatchSize]uint32
			got, usual := r.tr.SettleAll(order, hints, &tags, expected, r.now), uint32(0)
			if expected == 7 {
				usual = 1
			}
			if want := (Settled{Expected: expected, Hinted: 1, Usual: usual}); got != want || tags[0] != 7 {
				t.Errorf("%s: unexpected result %+v, tag %d", name, got, tags[0])
			}
		}
		// A hint is ignored if its generation differs from the connection's generation.
		hints[ref.Number][0].Generation += 2
		r.put(frame)
		order, _ := r.tr.SeekFlows(&r.b, 1, 1)
		var tags [packet.BatchSize]uint32
		if got := r.tr.SettleAll(order, hints, &tags, 7, r.now); got != (Settled{Expected: 7}) {
			t.Errorf("%s: result %+v for a hint of another generation", name, got)
		}
	}
}
