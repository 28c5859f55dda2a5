// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// arpNDFrame is an ARP, neighbour discovery or ICMP packet with the offsets of its
// fields, for slow rewrites.
type arpNDFrame struct {
	bytes  []byte
	l3, l4 int // 0: none
	proto  uint8
	arp    int
	sll    int // offset in the source link-layer address option; 0: no option
	tll    int
}

func randomNear(r *rand.Rand) arpNDFrame {
	var n arpNDFrame
	random := func(size int) []byte {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	n.bytes = random(12)
	for range r.IntN(3) {
		n.bytes = append(n.bytes, 0x81, 0, byte(r.Uint32()), byte(r.Uint32()))
	}
	switch r.IntN(4) {
	case 0:
		if r.IntN(3) == 0 {
			n.bytes = append(n.bytes, 0, 36, 0xaa, 0xaa, 3, 0, 0, 0)
		}
		n.bytes = append(n.bytes, 0x08, 0x06, 0, 1, 8, 0, 6, 4)
		n.arp = len(n.bytes) - 6
		n.bytes = append(n.bytes, random(22)...)
	case 1:
		n.bytes = append(n.bytes, 0x08, 0)
		n.l3 = len(n.bytes)
		n.bytes = append(n.bytes, random(20)...)
		n.bytes[n.l3], n.proto = 0x45, ProtoICMP
		n.l4 = len(n.bytes)
		n.bytes = append(n.bytes, random(8+r.IntN(9))...)
	default:
		n.bytes = append(n.bytes, 0x86, 0xdd)
		n.l3 = len(n.bytes)
		n.bytes = append(n.bytes, random(40)...)
		n.bytes[n.l3], n.proto = 0x60, ProtoICMPv6
		n.l4 = len(n.bytes)
		n.bytes = append(n.bytes, random(24)...)
		n.bytes[n.l4], n.bytes[n.l4+1] = byte(134+r.IntN(4)), byte(r.IntN(8)/7)
		for range r.IntN(3) {
			kind := byte(1 + r.IntN(3))
			at := len(n.bytes) + 2
			n.bytes = append(append(n.bytes, kind, 1), random(6)...)
			if kind == 1 && n.sll == 0 {
				n.sll = at
			} else if kind == 2 && n.tll == 0 {
				n.tll = at
			}
		}
	}
	n.checksum()
	return n
}

func (n *arpNDFrame) checksum() {
	if n.l4 == 0 {
		return
	}
	l4 := n.bytes[n.l4:]
	l4[2], l4[3] = 0, 0
	sum := uint32(0)
	add := func(b []byte) {
		for i := range b {
			sum += uint32(b[i]) << (8 * (1 - i%2))
		}
	}
	if n.proto == ProtoICMPv6 {
		add(n.bytes[n.l3+8 : n.l3+40])
		sum += uint32(len(l4)) + ProtoICMPv6
	}
	add(l4)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(l4[2:], ^uint16(sum))
}

// put writes the lowest size bytes of v at base+offset. If base is 0, the frame does not have the header, and
// put does nothing.
func (n *arpNDFrame) put(base, offset int, v uint64, size int) {
	if base == 0 {
		return
	}
	b := binary.BigEndian.AppendUint64(nil, v)
	copy(n.bytes[base+offset:], b[8-size:])
	n.checksum()
}

func (n *arpNDFrame) isND() bool {
	return n.proto == ProtoICMPv6 && (n.bytes[n.l4] == 135 || n.bytes[n.l4] == 136) && n.bytes[n.l4+1] == 0
}

// putOptionType changes the type of the first option with a link-layer address.
func (n *arpNDFrame) putOptionType(kind uint64) {
	first, tll := n.sll, n.tll
	if first == 0 || tll != 0 && tll < first {
		first = tll
	}
	n.put(first, -2, kind, 1)
	n.sll, n.tll = 0, 0
	for at := n.l4 + 24; at+8 <= len(n.bytes); at += 8 {
		if n.bytes[at] == 1 && n.sll == 0 {
			n.sll = at + 2
		} else if n.bytes[at] == 2 && n.tll == 0 {
			n.tll = at + 2
		}
	}
}

func checkNear(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 5))
	n := randomNear(r)
	var b Batch
	f, header := b.Next()
	copy(header[:], n.bytes)
	b.Commit(f, len(n.bytes))
	f.L3, f.L4, f.Proto = uint16(n.l3), uint16(n.l4), n.proto
	for range 6 {
		v, hi := r.Uint64(), r.Uint64()
		mac := v & (1<<48 - 1)
		icmp := 0
		if n.proto == ProtoICMP || n.proto == ProtoICMPv6 {
			icmp = n.l4
		}
		op := r.IntN(13)
		switch op {
		case 0:
			f.SetARPOp(uint16(v))
			n.put(n.arp, 6, v, 2)
		case 1:
			f.SetARPSpa(uint32(v))
			n.put(n.arp, 14, v, 4)
		case 2:
			f.SetARPTpa(uint32(v))
			n.put(n.arp, 24, v, 4)
		case 3:
			f.SetARPSha(mac)
			n.put(n.arp, 8, v, 6)
		case 4:
			f.SetARPTha(mac)
			n.put(n.arp, 18, v, 6)
		case 5:
			f.SetICMPType(uint8(v))
			n.put(icmp, 0, v, 1)
		case 6:
			f.SetICMPCode(uint8(v))
			n.put(icmp, 1, v, 1)
		case 7:
			f.SetNDTarget(hi, v)
			if n.isND() {
				n.put(n.l4, 8, hi, 8)
				n.put(n.l4, 16, v, 8)
			}
		case 8:
			f.SetNDSll(mac)
			if n.isND() {
				n.put(n.sll, 0, v, 6)
			}
		case 9:
			f.SetNDTll(mac)
			if n.isND() {
				n.put(n.tll, 0, v, 6)
			}
		case 10:
			f.SetIPv6Label(uint32(v))
			if n.proto == ProtoICMPv6 {
				word := binary.BigEndian.Uint32(n.bytes[n.l3:])
				n.put(n.l3, 0, uint64(word&^0xfffff)|v&0xfffff, 4)
			}
		}
		if op == 11 {
			f.SetNDReserved(uint32(v))
			if n.isND() {
				n.put(n.l4, 4, v, 4)
			}
		}
		if kind := v & 3; op == 12 {
			f.SetNDOptionsType(uint8(kind))
			if n.isND() {
				n.putOptionType(kind)
			}
		}
		got := f.Header()
		if !bytes.Equal(got, n.bytes) && !zeroSums(got, n.bytes, n.l4) {
			t.Fatalf("seed %d, operation %d:\n got %x\nwant %x", seed, op, got, n.bytes)
		}
	}
}

// zeroSums reports whether the only difference of two frames is that a checksum is 0 in one and 0xffff in the
// other. Both stand for the same sum.
func zeroSums(a, b []byte, l4 int) bool {
	if l4 == 0 {
		return false
	}
	a, b = bytes.Clone(a), bytes.Clone(b)
	for _, f := range [][]byte{a, b} {
		if f[l4+2] == 0xff && f[l4+3] == 0xff {
			f[l4+2], f[l4+3] = 0, 0
		}
	}
	return bytes.Equal(a, b)
}

func TestRewritesOfNeighbours(t *testing.T) {
	for seed := range uint64(5000) {
		checkNear(t, seed)
	}
}

func FuzzRewritesOfNeighbours(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { checkNear(t, seed) })
}

// Rewrites of truncated frames and of missing headers change nothing.
func TestRewritesOfAbsentHeaders(t *testing.T) {
	for size := range 60 {
		for _, etherType := range []uint16{0x0806, 0x8100, 0x0010, 0x86dd} {
			var b Batch
			f, header := b.Next()
			for at := 12; at+1 < size; at += 2 {
				binary.BigEndian.PutUint16(header[at:], etherType)
			}
			before := bytes.Clone(header[:size])
			b.Commit(f, size)
			f.SetARPOp(1)
			f.SetARPSha(1)
			f.SetARPSpa(1)
			f.SetICMPType(1)
			f.SetNDReserved(1)
			f.SetNDOptionsType(1)
			f.SetNDTarget(1, 1)
			f.SetNDSll(1)
			f.SetIPv6Label(1)
			if !bytes.Equal(f.Header(), before) {
				t.Fatalf("a rewrite changed a truncated frame of %d bytes with EtherType %#x", size, etherType)
			}
		}
	}
}
