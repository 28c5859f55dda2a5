// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/packet/packettest"
)

// Each setting of Extensions accepts exactly the VXLAN headers in this table. The rows come from
// Linux's selftest of reserved bits and from the drafts of GBP and GPE.
func TestExtensions(t *testing.T) {
	const valid = 0x08 << 56
	inner := innerFrame(t, false, false, 0, 50)
	for _, c := range []struct {
		name                     string
		bits                     uint64
		ignore, refuse, gbp, gpe bool
	}{
		{"none", 0, true, true, true, true},
		{"group 5", 0x80<<56 | 5<<32, true, false, true, false},
		{"group 5, applied, not learned", 0x80<<56 | 0x48<<48 | 5<<32, true, false, true, false},
		{"group without its flag", 5 << 32, true, false, false, false},
		{"GPE with Ethernet", 0x04<<56 | 3<<32, true, false, false, true},
		{"GPE with Ethernet, broadcast", 0x06<<56 | 3<<32, true, false, false, true},
		{"GPE with IPv4", 0x04<<56 | 1<<32, true, false, false, false},
		{"GPE without a protocol", 0x04 << 56, true, false, false, false},
		{"a protocol without its flag", 3 << 32, true, false, false, false},
		{"GPE version 1", 0x14<<56 | 3<<32, true, false, false, false},
		{"GPE, maintenance", 0x05<<56 | 3<<32, true, false, false, false},
		{"remote checksum offload", 0x20 << 48, true, false, false, false},
		{"the last byte", 1, true, false, false, false},
		{"the first flag and the last byte", 0x80<<56 | 0xff, true, false, false, false},
	} {
		for extensions, want := range []bool{c.ignore, c.refuse, c.gbp, c.gpe} {
			a := packettest.NewArena(t, 1<<16)
			data := datagram(t, a, params4, inner, 7, 0)
			header := data[14+20+8:]
			binary.BigEndian.PutUint64(header, valid|c.bits|7<<8)
			table := NewTerminations()
			table.Set(0, &Termination{Port: 42, VNI: 7, UDPPort: 4789, Extensions: uint8(extensions)})
			var b packet.Batch
			f := a.Add(&b, data, packet.MaxHeader, 10)
			reason := table.Decapsulate(&b, f, new([flowtable.TunnelWords]uint64), new(flowtable.TunOptions))
			if got := reason == packet.DropNone; got != want || !got && reason != packet.DropBadVXLAN {
				t.Errorf("%s, extensions %d: %v", c.name, extensions, reason)
			}
		}
	}
}

// The outer header inherits TTL and TOS from the inner IP header, with all IP versions. Without an
// inner IP header, it gets the port's TTL and TOS 0.
func TestInherit(t *testing.T) {
	a := packettest.NewArena(t, 1<<18)
	for _, outer6 := range []bool{false, true} {
		for _, inner6 := range []bool{false, true} {
			for tos := range 256 {
				p := params4
				if outer6 {
					p = params6
				}
				p.InheritTTL, p.InheritTOS, p.DontFragment = true, true, tos&1 != 0
				inner := innerFrame(t, inner6, false, uint8(tos), 100)
				a.Reset()
				var b packet.Batch
				f := a.Add(&b, inner, packet.InnerHeader, 50)
				f.L3, f.L4 = 14, 34
				wantTTL, wantTOS := uint8(9), uint8(tos)
				if tos == 255 { // stands for ARP
					f.L3, wantTTL, wantTOS = 0, 61, 0
				}
				if reason := build(t, p).Push(f, 7, 1, InnerTOS(f), nil); reason != packet.DropNone {
					t.Fatal(reason)
				}
				h := packettest.Bytes(&b, f)[14:]
				gotTTL, gotTOS := h[8], h[1]
				if outer6 {
					ip := packet.IPv6(h[:packet.IPv6Len])
					gotTTL, gotTOS = h[7], ip.TrafficClass()
				} else if packet.Sum(h[:20]) != 0xffff {
					t.Errorf("TOS %#x: the checksum is wrong", tos)
				}
				if gotTTL != wantTTL || gotTOS != wantTOS {
					t.Errorf("outer IPv6 %v, inner IPv6 %v, TOS %#x: TTL %d, TOS %#x", outer6, inner6, tos, gotTTL, gotTOS)
				}
			}
		}
	}
}

// Each next hop gets hash values in proportion to its number of entries. The next hop and the source
// port depend on the same bits of the hash.
func TestSpread(t *testing.T) {
	for _, nexthops := range [][]uint32{{7}, {7, 8}, {7, 8, 8, 9}, {1, 2, 3}} {
		s := Spread(nexthops)
		var back Template
		if !back.Parse(s.AppendTo(nil)) || back != s {
			t.Errorf("%v: Parse does not restore the encoded template", nexthops)
		}
		count := map[uint32]int{}
		for _, w := range nexthops {
			count[w] = 0
		}
		for share := range uint32(NextHops) {
			w := s.NextHop(share << 28)
			if s.NextHop(share<<28|0x0fffffff) != w {
				t.Errorf("%v: hashes with the same upper bits %d have two next hops", nexthops, share)
			}
			if _, known := count[w]; !known {
				t.Errorf("%v: unknown next hop %d", nexthops, w)
			}
			count[w]++
		}
		for i, w := range nexthops {
			if len(nexthops)&(len(nexthops)-1) == 0 && i == 0 && count[w] != NextHops/len(nexthops) || count[w] == 0 {
				t.Errorf("%v: %v", nexthops, count)
			}
		}
	}
	s := Spread([]uint32{1})
	if reason := s.Push(nil, 0, 0, 0, nil); reason != packet.DropNoRoute {
		t.Errorf("a spread template pushed: %v", reason)
	}
}
