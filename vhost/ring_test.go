// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// slowRing is a reference implementation of the rings over flat guest memory (virtio
// 1.2 section 2.7).
type slowRing struct {
	guest  *vhosttest.Guest
	queue  *vhosttest.Queue
	memory func(addr, n uint64) ([]byte, bool)
}

// chain returns the memory of a chain. ok is false if the chain is invalid.
func (s slowRing) chain(head int, write bool) (pieces [][]byte, ok bool) {
	descs := s.queue.Descs
	visited := 0
	for i := head; ; {
		if i >= len(descs) || visited == len(descs) {
			return nil, false
		}
		visited++
		d := descs[i]
		if d.Flags&vhosttest.Indirect != 0 {
			if d.Flags&vhosttest.Next != 0 {
				return nil, false
			}
			more, ok := s.table(d, write)
			return append(pieces, more...), ok
		}
		piece, ok := s.piece(d, write)
		if !ok {
			return nil, false
		}
		pieces = append(pieces, piece)
		if d.Flags&vhosttest.Next == 0 {
			return pieces, true
		}
		i = int(d.Next)
	}
}

func (s slowRing) table(t vhosttest.Desc, write bool) (pieces [][]byte, ok bool) {
	if t.Len == 0 || t.Len%16 != 0 {
		return nil, false
	}
	visited := uint32(0)
	for i := uint32(0); ; {
		if i >= t.Len/16 || visited == t.Len/16 {
			return nil, false
		}
		visited++
		b, ok := s.memory(t.Addr+16*uint64(i), 16)
		if !ok {
			return nil, false
		}
		d := vhosttest.Desc{Addr: binary.LittleEndian.Uint64(b), Len: binary.LittleEndian.Uint32(b[8:]),
			Flags: binary.LittleEndian.Uint16(b[12:]), Next: binary.LittleEndian.Uint16(b[14:])}
		if d.Flags&vhosttest.Indirect != 0 {
			return nil, false
		}
		piece, ok := s.piece(d, write)
		if !ok {
			return nil, false
		}
		pieces = append(pieces, piece)
		if d.Flags&vhosttest.Next == 0 {
			return pieces, true
		}
		i = uint32(d.Next)
	}
}

func (s slowRing) piece(d vhosttest.Desc, write bool) ([]byte, bool) {
	if d.Len == 0 || write != (d.Flags&vhosttest.Write != 0) {
		return nil, false
	}
	return s.memory(d.Addr, uint64(d.Len))
}

type slowChain struct {
	pieces [][]byte
	ok     bool
}

func (s slowRing) chains(heads []int, write bool) (chains []slowChain) {
	for _, h := range heads {
		pieces, ok := s.chain(h, write)
		chains = append(chains, slowChain{pieces, ok})
	}
	return chains
}

// packedChains returns the available chains of a packed ring (virtio 1.2 section 2.8) up to the first
// invalid one.
func (s slowRing) packedChains(write bool) (chains []slowChain) {
	num := s.guest.Num
	at, wrap := int(s.queue.Start()&0x7fff), true
	step := func() {
		if at++; at == num {
			at, wrap = 0, !wrap
		}
	}
	for len(chains) == 0 || chains[len(chains)-1].ok {
		d := s.queue.Packed(at)
		if d.Flags&0x80 != 0 != wrap || d.Flags&0x8000 != 0 == wrap {
			break
		}
		c := slowChain{ok: true}
		for n := 1; ; n++ {
			d := s.queue.Packed(at)
			step()
			if d.Flags&vhosttest.Indirect != 0 {
				more, ok := s.packedTable(d, write)
				c.pieces, c.ok = append(c.pieces, more...), c.ok && ok && d.Flags&vhosttest.Next == 0
				break
			}
			piece, ok := s.piece(d, write)
			c.pieces, c.ok = append(c.pieces, piece), c.ok && ok
			if d.Flags&vhosttest.Next == 0 {
				break
			}
			if n == num {
				c.ok = false
				break
			}
		}
		chains = append(chains, c)
	}
	return chains
}

func (s slowRing) packedTable(t vhosttest.Desc, write bool) (pieces [][]byte, ok bool) {
	if t.Len == 0 || t.Len%16 != 0 {
		return nil, false
	}
	for i := range uint64(t.Len / 16) {
		b, ok := s.memory(t.Addr+16*i, 16)
		if !ok {
			return nil, false
		}
		d := vhosttest.Desc{Addr: binary.LittleEndian.Uint64(b), Len: binary.LittleEndian.Uint32(b[8:]), Flags: binary.LittleEndian.Uint16(b[14:])}
		piece, ok := s.piece(d, write)
		if !ok || d.Flags&vhosttest.Indirect != 0 {
			return nil, false
		}
		pieces = append(pieces, piece)
	}
	return pieces, true
}

// received returns the frames that Recv must return before the first invalid chain.
func received(chains []slowChain, header int) (frames [][]byte, broken bool) {
	for _, c := range chains {
		frame := bytes.Join(c.pieces, nil)
		if !c.ok || len(frame) < header || len(frame)-header > packet.MaxFrameLen {
			return frames, true
		}
		frames = append(frames, frame[header:])
	}
	return frames, false
}

// slowSend writes a frame into the available chains, and returns how many of them it used. If it used
// none, the device must not accept the frame. If drop is true, the device must drop the frame.
func slowSend(frame []byte, chains []slowChain, header int, mergeable bool) (accepted int, drop, broken bool) {
	var room [][]byte
	size := 0
	for _, c := range chains {
		if !c.ok {
			return 0, false, true
		}
		accepted++
		for _, p := range c.pieces {
			room, size = append(room, p), size+len(p)
		}
		if size >= header+len(frame) {
			all := append(make([]byte, header), frame...)
			if header == 12 {
				binary.LittleEndian.PutUint16(all[10:], uint16(accepted))
			}
			for _, p := range room {
				all = all[copy(p, all):]
			}
			return accepted, false, false
		}
		if !mergeable {
			return 0, true, false
		}
	}
	return 0, false, false
}

// ringProgram writes descriptors, indirect tables and heads into a ring. Fuzzed bytes choose them, so
// that most are valid.
type ringProgram struct {
	data  []byte
	queue *vhosttest.Queue
	base  uint64 // guest address of the chains' data
	limit uint64 // end of guest memory
}

func (p *ringProgram) byte() byte {
	if len(p.data) == 0 {
		return 0
	}
	b := p.data[0]
	p.data = p.data[1:]
	return b
}

func (p *ringProgram) u16() uint64 { return uint64(p.byte()) | uint64(p.byte())<<8 }

func (p *ringProgram) desc(write bool) vhosttest.Desc {
	how := p.byte()
	d := vhosttest.Desc{Addr: p.base + p.u16(), Len: uint32(p.u16() & 0x3ff), Flags: uint16(how & vhosttest.Next), Next: uint16(p.byte() % 20)}
	if write != (how&0x80 != 0 && how&0x40 != 0) {
		d.Flags |= vhosttest.Write
	}
	switch how & 0x38 {
	case 0x08:
		d.Addr = p.limit - uint64(d.Len/2)
	case 0x10:
		d.Flags |= vhosttest.Indirect
		d.Addr, d.Len = p.queue.TableAddr(int(d.Addr&3)), 16*(d.Len%7)
	case 0x18:
		d.Flags |= vhosttest.Indirect
	case 0x20:
		d.Len <<= 7
	case 0x28:
		d.Addr -= p.base
	}
	return d
}

func (p *ringProgram) write(write bool) (heads []int) {
	for i := range p.queue.Descs {
		p.queue.Descs[i] = p.desc(write)
	}
	for i := range 4 {
		for k := range p.queue.Table(i) {
			p.queue.Table(i)[k] = p.desc(write)
		}
	}
	for range 1 + p.byte()%12 {
		heads = append(heads, int(p.byte()%17))
	}
	return heads
}

// writePacked writes a packed ring and its indirect tables, which fuzzed bytes choose.
func (p *ringProgram) writePacked(g *vhosttest.Guest, write bool) {
	start := int(p.queue.Start() & 0x7fff)
	for i := range g.Num {
		d := p.desc(write)
		lap := uint16(0x80)
		if (start+i)/g.Num > 0 {
			lap = 0x8000
		}
		if p.byte()%16 == 15 {
			lap ^= 0x8080
		}
		d.Flags |= lap
		p.queue.SetPacked((start+i)%g.Num, d)
	}
	for i := range 4 {
		table := value(g.Bytes(p.queue.TableAddr(i), 6*16))
		for ; len(table) > 0; table = table[16:] {
			d := p.desc(write)
			binary.LittleEndian.PutUint64(table, d.Addr)
			binary.LittleEndian.PutUint32(table[8:], d.Len)
			binary.LittleEndian.PutUint16(table[14:], d.Flags)
		}
	}
}

// newProgram returns a guest, and a program that writes one of its rings.
func newProgram(t *testing.T, flags byte, data []byte, index int) (*vhosttest.Guest, *ringProgram) {
	features := uint64(vhost.FeatureIndirect)
	if flags&1 != 0 {
		features |= vhost.FeatureVersion1
	}
	if flags&2 != 0 {
		features |= vhost.FeatureMergeable
	}
	if flags&8 != 0 {
		features |= vhost.FeatureRingPacked
	}
	g := guest(t, vhosttest.Options{Num: 16, BufLen: 4096, Features: features, SplitRegions: flags&4 != 0, Seed: 65530})
	last := g.Regions()[len(g.Regions())-1]
	p := &ringProgram{data: data, base: g.Tx[0].SlotAddr(0), limit: last.GuestAddr + last.Size,
		queue: []*vhosttest.Queue{g.Rx[0], g.Tx[0]}[index]}
	fill, _ := g.Bytes(p.base, p.limit-p.base)
	for i := range fill {
		fill[i] = byte(i*31 + i>>8)
	}
	p.queue.Withdraw()
	return g, p
}

func ringSeeds(f *testing.F) {
	f.Add(byte(7), bytes.Repeat([]byte{0, 1, 2, 64, 0, 3}, 60))
	f.Add(byte(3), bytes.Repeat([]byte{1, 1, 2, 64, 0, 3}, 60))
	f.Add(byte(4), bytes.Repeat([]byte{0x10, 1, 0, 3, 0, 3, 1, 9, 9, 50, 0, 4}, 60))
	f.Add(byte(7), bytes.Repeat([]byte{1, 200, 100, 200, 1, 1, 0, 1, 1, 1, 1, 7, 0x20, 4, 4, 4, 4, 4}, 30))
	for i, attack := 0, make([]byte, 600); i < 8; i++ {
		for k := range attack {
			attack[k] = byte((k*(2*i+7) + k*k*i) >> 2)
		}
		f.Add(byte(i), bytes.Clone(attack))
		f.Add(byte(i|8), bytes.Clone(attack))
	}
}

// FuzzReceive compares Recv with slowRing.
func FuzzReceive(f *testing.F) {
	ringSeeds(f)
	f.Fuzz(func(t *testing.T, flags byte, data []byte) {
		g, p := newProgram(t, flags, data, 1)
		slow, header := slowRing{g, g.Tx[0], g.Bytes}, vhosttest.HeaderLen(g.Features)
		var want [][]byte
		var broken bool
		var d *vhost.Device
		if g.Features&vhost.FeatureRingPacked != 0 {
			p.writePacked(g, false)
			want, broken = received(slow.packedChains(false), header)
			d = open(t, g, nil)
		} else {
			heads := p.write(false)
			want, broken = received(slow.chains(heads, false), header)
			d = open(t, g, nil)
			for _, h := range heads {
				g.Tx[0].Offer(uint16(h))
			}
			g.Tx[0].Publish()
		}
		b := new(packet.Batch)
		n := d.Rx()[0].Recv(b)
		if n < 0 && len(want) > 0 || n >= 0 && n != len(want) || n < 0 && !broken {
			t.Fatalf("received %d, expected %d, broken %v: %s", n, len(want), broken, d.Rx()[0].Fault())
		}
		for i, w := range want {
			got := make([]byte, len(w)+1)
			if m := b.Gather(&b.Frames[i], got); m != len(w) || !bytes.Equal(got[:m], w) {
				t.Fatalf("frame %d: %d bytes, expected %d", i, m, len(w))
			}
			if h := b.Frames[i].Header(); len(h) != min(len(w), packet.InnerHeader) {
				t.Fatalf("frame %d: header buffer of %d bytes of %d", i, len(h), len(w))
			}
		}
		d.Rx()[0].Release()
		if used := g.Tx[0].UsedIndex() - g.Seed; g.Features&vhost.FeatureRingPacked == 0 && int(used) != len(want) {
			t.Fatalf("%d chains given back, expected %d", used, len(want))
		}
		if again := d.Rx()[0].Recv(b); (again < 0) != broken || (d.Rx()[0].Fault() != "") != broken {
			t.Fatalf("after it: %d, fault %q; broken %v", again, d.Rx()[0].Fault(), broken)
		}
	})
}

// FuzzSend compares the guest memory and the results of Send with slowRing.
func FuzzSend(f *testing.F) {
	ringSeeds(f)
	f.Fuzz(func(t *testing.T, flags byte, data []byte) {
		g, p := newProgram(t, flags, data, 0)
		size := 60 + 17*int(flags)
		twin := bytes.Clone(value(g.Bytes(p.base, p.limit-p.base)))
		slow := slowRing{g, g.Rx[0], func(addr, n uint64) ([]byte, bool) {
			if _, ok := g.Bytes(addr, n); !ok || addr < p.base {
				return g.Bytes(addr, n)
			}
			return twin[addr-p.base:][:n], true
		}}
		frame := random(1, size)
		packed := g.Features&vhost.FeatureRingPacked != 0
		var heads []int
		var chains []slowChain
		if packed {
			p.writePacked(g, true)
			copy(twin, value(g.Bytes(p.base, p.limit-p.base)))
			chains = slow.packedChains(true)
		} else {
			heads = p.write(true)
			chains = slow.chains(heads, true)
		}
		taken, drop, broken := slowSend(frame, chains, vhosttest.HeaderLen(g.Features), flags&2 != 0)

		from := guest(t, vhosttest.Options{BufLen: 8192})
		source, d := open(t, from, nil), open(t, g, nil)
		from.Tx[0].Send(frame)
		from.Tx[0].Publish()
		for _, h := range heads {
			g.Rx[0].Offer(uint16(h))
		}
		if !packed {
			g.Rx[0].Publish()
		}
		b := new(packet.Batch)
		source.Rx()[0].Recv(b)
		n := d.Tx()[0].Send(b, allOffloads[:1])
		if (n == 1) != (taken > 0 || drop) || (b.Frames[0].Drop == packet.DropOversizeFrame) != drop {
			t.Fatalf("sent %d, drop %v; expected %d chains, drop %v", n, b.Frames[0].Drop, taken, drop)
		}
		if now := value(g.Bytes(p.base, p.limit-p.base)); !bytes.Equal(now, twin) {
			t.Fatal("guest memory differs")
		}
		d.Tx()[0].Flush()
		if used := g.Rx[0].UsedIndex() - g.Seed; !packed && int(used) != taken {
			t.Fatalf("%d chains used, expected %d", used, taken)
		}
		if (d.Rx()[0].Fault() != "") != broken {
			t.Fatalf("fault %q, broken %v", d.Rx()[0].Fault(), broken)
		}
	})
}

func value(b []byte, ok bool) []byte {
	if !ok {
		panic("outside of guest memory")
	}
	return b
}
