// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"math/rand"
	"testing"

	"weft/packet"
	"weft/packet/packettest"
)

// sent is a frame of a test's batch, together with its stream (connection).
type sent struct {
	s    *stream
	data []byte
	tag  uint64
}

// randomRun returns frames of several connections in mixed order. Some of the frames must not
// be merged.
func randomRun(rng *rand.Rand) (run []sent) {
	type sender struct {
		*stream
		size, offset, index int
		flags               byte
		tag                 uint64
	}
	var senders []*sender
	for range 1 + rng.Intn(3) {
		s := randomStream(rng)
		if len(senders) > 0 && rng.Intn(4) == 0 {
			c := *senders[0].stream
			s = &c
			switch rng.Intn(4) {
			case 0:
				s.ports[1]++
			case 1:
				s.src[3]++
			case 2:
				s.eth = bytes.Clone(s.eth)
				s.eth[5]++
			}
			s.tcp = bytes.Clone(s.tcp)
			copy(s.tcp, s.ports[:])
		}
		senders = append(senders, &sender{stream: s, size: 1 + rng.Intn(1400), flags: 0x10, tag: uint64(rng.Intn(2))})
	}
	for len(run) < packet.BatchSize {
		p := senders[rng.Intn(len(senders))]
		for range 1 + rng.Intn(6) {
			n, flags, tag := p.size, p.flags, p.tag
			c := *p.stream
			c.tcp = bytes.Clone(c.tcp)
			switch rng.Intn(30) {
			case 0:
				n = rng.Intn(p.size + 1)
			case 1:
				n += 1 + rng.Intn(20)
			case 2:
				flags |= 1 << rng.Intn(8)
			case 3:
				p.offset += rng.Intn(3) - 1
			case 4:
				p.index += rng.Intn(4) - 1
			case 5:
				c.ttl++
			case 6:
				c.tos ^= 1 << rng.Intn(8)
			case 7:
				if len(c.tcp) > 4 {
					c.tcp[8+rng.Intn(len(c.tcp)-8)] ^= 1 << rng.Intn(8)
					c.tcp[12] = byte(len(c.tcp)/4)<<4 | c.tcp[12]&15
				}
			case 8:
				c.df = !c.df
			case 9:
				tag++
			case 10:
				p.flags |= 1 << rng.Intn(8)
			}
			if len(run) == packet.BatchSize {
				break
			}
			data := c.frame(randomBytes(rng, n), p.index, p.offset, flags, false)
			if rng.Intn(40) == 0 {
				data[len(data)-1-rng.Intn(min(20, len(data)-c.l3()))] ^= 1
			}
			run = append(run, sent{&c, data, tag})
			p.offset += n
			p.index++
		}
	}
	return run
}

// mayFollow reports whether the rules of Linux's GRO allow to merge frame z into the large frame that starts
// with frame a. The large frame has count segments and payload bytes so far.
func mayFollow(a, z sent, count, payload int, fixed *bool) bool {
	s, g := a.s, z.s
	if a.tag != z.tag || s.v6 != g.v6 || s.udp != g.udp || !bytes.Equal(s.eth, g.eth) || s.ttl != g.ttl || s.tos != g.tos {
		return false
	}
	n := 4
	if s.v6 {
		n = 16
	}
	if !bytes.Equal(s.src[:n], g.src[:n]) || !bytes.Equal(s.dst[:n], g.dst[:n]) || s.ports != g.ports {
		return false
	}
	l3, l4 := s.l3(), s.l4()
	if !s.v6 {
		if a.data[l3+6] != z.data[l3+6] {
			return false
		}
		step := int(uint16(be16(z.data[l3+4:]) - be16(a.data[l3+4:])))
		if count == 1 {
			*fixed = step == 0 && a.data[l3+6] == 0x40
		}
		if *fixed && step != 0 || !*fixed && step != count {
			return false
		}
	}
	size, own := len(a.data)-s.headers(), len(z.data)-g.headers()
	if own < 1 || own > size || z.s.headers()-l3+payload+own > 65535 {
		return false
	}
	if s.udp {
		return true
	}
	x, y := bytes.Clone(a.data[l4:s.headers()]), bytes.Clone(z.data[l4:g.headers()])
	if len(x) != len(y) || y[13]&0x80 != 0 {
		return false
	}
	if be32(y[4:]) != be32(x[4:])+uint32(payload) {
		return false
	}
	for _, h := range [][]byte{x, y} {
		clear(h[4:8])
		h[13] &^= 0x09
		clear(h[16:18])
	}
	return bytes.Equal(x, y)
}

func be16(b []byte) uint16 { return uint16(b[0])<<8 | uint16(b[1]) }
func be32(b []byte) uint32 { return uint32(be16(b))<<16 | uint32(be16(b[2:])) }

// endsAfter reports whether frame z must be the last segment of a large frame whose segments have size bytes.
func endsAfter(z sent, size int) bool {
	if own := len(z.data) - z.s.headers(); own < size || own == 0 {
		return true
	}
	return !z.s.udp && z.data[z.s.l4()+13]&0x2f != 0 // FIN, SYN, RST, PSH, URG
}

func sound(z sent) bool {
	s, l4 := z.s, z.data[z.s.l4():]
	l3 := z.data[s.l3():]
	if s.v6 {
		pseudo := append(bytes.Clone(l3[8:40]), 0, s.proto, byte(len(l4)>>8), byte(len(l4)))
		return slowSum(append(pseudo, l4...)) == 0xffff
	}
	pseudo := append(bytes.Clone(l3[12:20]), 0, s.proto, byte(len(l4)>>8), byte(len(l4)))
	return slowSum(l3[:20]) == 0xffff && slowSum(append(pseudo, l4...)) == 0xffff
}

// slowCoalesce returns the groups of frames that a Coalescer must merge, as indexes
// into run.
func slowCoalesce(run []sent) (groups [][]int) {
	fixed := map[int]bool{}
	for i, z := range run {
		latest := -1 // index of the group that has the latest frame of the connection
		for g := range groups {
			if connection(run[groups[g][0]]) == connection(z) {
				latest = g
			}
		}
		if latest >= 0 && sound(z) {
			group := groups[latest]
			first, last := run[group[0]], run[group[len(group)-1]]
			payload := 0
			for _, m := range group {
				payload += len(run[m].data) - run[m].s.headers()
			}
			size := len(first.data) - first.s.headers()
			f := fixed[group[0]]
			if sound(first) && !endsAfter(last, size) && mayFollow(first, z, len(group), payload, &f) {
				fixed[group[0]] = f
				groups[latest] = append(group, i)
				continue
			}
		}
		groups = append(groups, []int{i})
	}
	return groups
}

func connection(z sent) string {
	l3, l4 := z.data[z.s.l3():], z.data[z.s.l4():]
	addresses := l3[12:20]
	if z.s.v6 {
		addresses = l3[8:40]
	}
	return string(addresses) + string(l4[:4]) + string(z.s.proto)
}

func checkCoalesce(t *testing.T, a *packettest.Arena, seed int64) (merged int) {
	rng := rand.New(rand.NewSource(seed))
	run := randomRun(rng)
	a.Reset()
	b := new(packet.Batch)
	header, span := 128+rng.Intn(64), 0
	if rng.Intn(3) == 0 {
		span = 60 + rng.Intn(500)
	}
	for _, z := range run {
		z.s.note(a.Add(b, z.data, header, span), 0)
	}
	var c packet.Coalescer
	c.Begin(packet.TakesAll)
	part := make([]bool, len(run))
	for i, z := range run {
		part[i] = c.Add(b, i, z.tag)
	}
	c.Finish(b)
	for _, group := range slowCoalesce(run) {
		var want [][]byte
		for n, i := range group {
			want = append(want, run[i].data)
			if part[i] != (n > 0) {
				t.Fatalf("seed %d: frame %d merged %v, want %v (group %v)", seed, i, part[i], n > 0, group)
			}
		}
		f := &b.Frames[group[0]]
		if len(group) == 1 {
			compareFrames(t, seed, [][]byte{packettest.Bytes(b, f)}, want)
			continue
		}
		merged += len(group) - 1
		if reason := b.CheckOffload(f); reason != packet.DropNone || f.Offload.GSO == packet.GSONone {
			t.Fatalf("seed %d: coalesced frame refused: %v", seed, reason)
		}
		compareFrames(t, seed, segments(b, f, false), want)
	}
	return merged
}

// Segmentation of the coalesced frames restores the original frames.
func TestCoalesce(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	merged, seeds := int64(0), seeds(4000)
	for seed := range seeds {
		merged += int64(checkCoalesce(t, a, seed))
	}
	if merged < seeds {
		t.Fatalf("only %d frames were merged: the test shows nothing", merged)
	}
}

func FuzzCoalesce(f *testing.F) {
	f.Add(int64(1))
	a := packettest.NewArena(f, 1<<17)
	f.Fuzz(func(t *testing.T, seed int64) { checkCoalesce(t, a, seed) })
}

// A Coalescer makes only large frames that the set of accepted offloads includes.
func TestCoalesceOnlyWhatIsTaken(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	for seed := range int64(400) {
		rng := rand.New(rand.NewSource(seed))
		s := randomStream(rng)
		flags := byte(0x10 | rng.Intn(2)<<7)
		takes := packet.Offloads(rng.Intn(int(packet.TakesAll) + 1))
		a.Reset()
		var b packet.Batch
		var c packet.Coalescer
		c.Begin(takes)
		merged := false
		for i := range 2 {
			s.note(a.Add(&b, s.frame(randomBytes(rng, 500), i, i*500, flags, false), 128, 0), 0)
			merged = c.Add(&b, i, 0)
		}
		c.Finish(&b)
		if f := &b.Frames[0]; merged && !takes.Takes(f) {
			t.Fatalf("seed %d: %#x does not take %+v", seed, takes, f.Offload)
		}
		if !s.udp && flags&0x80 != 0 && merged {
			t.Fatalf("seed %d: CWR twice in one large frame", seed)
		}
		if flags&0x80 == 0 && takes == packet.TakesAll && !merged {
			t.Fatalf("seed %d: not merged", seed)
		}
	}
}

func TestCoalesceAllocatesNothing(t *testing.T) {
	a := packettest.NewArena(t, 1<<17)
	rng := rand.New(rand.NewSource(5))
	s := randomStream(rng)
	b, c := new(packet.Batch), new(packet.Coalescer)
	var frames [][]byte
	for i := range packet.BatchSize {
		frames = append(frames, s.frame(randomBytes(rng, 1400), i, i*1400, 0x10, false))
	}
	if n := testing.AllocsPerRun(10, func() {
		a.Reset()
		b.Reset()
		c.Begin(packet.TakesAll)
		for i, data := range frames {
			s.note(a.Add(b, data, 192, 0), 0)
			if c.Add(b, i, 0) != (i > 0) {
				panic("not merged")
			}
		}
		c.Finish(b)
	}); n != 0 {
		t.Fatalf("coalescing makes %v allocations, want 0", n)
	}
}
