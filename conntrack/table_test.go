// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/rand"
	"net/netip"
	"testing"

	"weft/flowtable"
	"weft/packet"
	"weft/packet/packettest"
)

// slowTable is a reference implementation of the table: a list of UDP connections.

type slowConn struct {
	zone      uint16
	orig, rpl [2]netip.AddrPort // source and destination in the frames of each direction, before translation
	replied   bool
	seen      bool
	mark      uint32
	expires   uint64
}

type slowTable struct{ conns []*slowConn }

func (s *slowTable) find(zone uint16, src, dst netip.AddrPort, now uint64) (*slowConn, int) {
	for i := 0; i < len(s.conns); i++ {
		c := s.conns[i]
		if now > c.expires { // a connection may expire up to a second after its timeout
			s.conns = append(s.conns[:i], s.conns[i+1:]...)
			i--
			continue
		}
		ends := [2]netip.AddrPort{src, dst}
		if c.zone == zone && ends == c.orig {
			return c, 0
		}
		if c.zone == zone && ends == c.rpl {
			return c, 1
		}
	}
	return nil, 0
}

func (s *slowTable) end(c *slowConn) {
	for i := range s.conns {
		if s.conns[i] == c {
			s.conns = append(s.conns[:i], s.conns[i+1:]...)
			return
		}
	}
}

// see returns what the tracker must do with a frame: its ct_state and ct_mark, whether it is dropped, and
// its source and destination after NAT. snat is the source address to which a new connection is translated.
func (s *slowTable) see(zone uint16, src, dst netip.AddrPort, req *Request, snat netip.Addr, now uint64) (state uint8, mark uint32, drop bool, a, b netip.AddrPort) {
	c, dir := s.find(zone, src, dst, now)
	if c != nil && req.Force && req.Commit && dir == 1 {
		s.end(c)
		c, dir = nil, 0
	}
	if c == nil {
		if !req.Commit {
			return Tracked | New, 0, false, src, dst
		}
		c = &slowConn{zone: zone, orig: [2]netip.AddrPort{src, dst}, rpl: [2]netip.AddrPort{dst, src}, mark: req.Mark & req.MarkMask}
		if snat.IsValid() {
			c.rpl[1] = netip.AddrPortFrom(snat, src.Port())
		}
		if other, _ := s.find(zone, c.rpl[0], c.rpl[1], now); other != nil {
			return Tracked | New, 0, true, src, dst
		}
		s.conns = append(s.conns, c)
		c.expires = now + uint64(DefaultTimeouts[udpFirst])*second
		state = Tracked | New
	} else {
		if dir == 1 {
			c.replied = true
		}
		switch c.seen = true; {
		case c.replied:
			c.expires = now + uint64(DefaultTimeouts[udpMultiple])*second
			state = Tracked | Established
		default:
			c.expires = now + uint64(DefaultTimeouts[udpSingle])*second
			state = Tracked | New
		}
		if req.Commit {
			c.mark = c.mark&^req.MarkMask | req.Mark&req.MarkMask
		}
	}
	if dir == 1 {
		state |= Reply
	}
	a, b = src, dst
	if req.NAT.Kind != NATNone {
		if dir == 0 && c.rpl[1] != c.orig[0] {
			a, state = c.rpl[1], state|SNAT
		} else if dir == 1 && c.rpl[1] != c.orig[0] {
			b, state = c.orig[0], state|DNAT
		}
	}
	return state, c.mark, false, a, b
}

func FuzzTableTwin(f *testing.F) {
	for seed := range int64(10) {
		f.Add(seed, uint16(500))
	}
	f.Fuzz(func(t *testing.T, seed int64, steps uint16) { tryTable(t, seed, int(steps%2000)) })
}

func TestTableTwin(t *testing.T) {
	for seed := range seeds(30) {
		tryTable(t, seed, 800)
	}
}

func tryTable(t *testing.T, seed int64, steps int) {
	rng := rand.New(rand.NewSource(seed))
	r := newRig(t, 1024)
	var slow slowTable
	v6 := seed%3 == 0
	address := func() netip.Addr {
		n := byte(rng.Intn(4) + 1)
		if v6 {
			return netip.AddrFrom16([16]byte{0xfd, 15: n})
		}
		return netip.AddrFrom4([4]byte{10, 0, 0, n})
	}
	side := func() netip.AddrPort { return netip.AddrPortFrom(address(), uint16(rng.Intn(3)+1)) }
	for step := range steps {
		src, dst := side(), side()
		req := Request{Zone: uint16(rng.Intn(2)), Commit: rng.Intn(2) == 0, Force: rng.Intn(8) == 0}
		var snat netip.Addr
		switch rng.Intn(4) {
		case 0:
			req.NAT.Kind = NATBare
		case 1:
			// NAT uses a single port, so that the reference implementation need not
			// choose one.
			snat = address()
			req.NAT = NAT{Kind: NATSrc, IPv6: v6, Lo: addrWords(snat), Hi: addrWords(snat), PortLo: src.Port(), PortHi: src.Port()}
		}
		if req.Commit && rng.Intn(2) == 0 {
			req.Mark, req.MarkMask = rng.Uint32(), rng.Uint32()
		}
		if rng.Intn(20) == 0 {
			r.now += uint64(rng.Intn(40)) * second
			r.tr.Sweep(r.now)
		}
		state, mark, drop, a, b := slow.see(req.Zone, src, dst, &req, snat, r.now)
		m, out := r.send(udpFrame(src.String(), dst.String(), 10), req)
		if drop != (m.Drop != packet.DropNone) || !drop && (m.State != state || m.Mark != mark) {
			t.Fatalf("step %d: %v > %v %+v: %s mark %#x drop %v; want %s mark %#x drop %v",
				step, src, dst, req, stateText(m.State), m.Mark, m.Drop, stateText(state), mark, drop)
		}
		sameBytes(t, out, udpFrame(a.String(), b.String(), 10))
		if step%50 == 0 {
			check(t, r.tr.Table)
		}
	}
	check(t, r.tr.Table)
	live := 0
	r.tr.Each(r.now, func(*Entry) bool { live++; return true })
	slow.find(0, netip.AddrPort{}, netip.AddrPort{}, r.now)
	if live != len(slow.conns) {
		t.Fatalf("%d connections, want %d", live, len(slow.conns))
	}
}

// An engine is killed in the middle of a change of the table. The next engine finds all live
// connections.
func TestRecovery(t *testing.T) {
	for seed := range int64(20) {
		rng := rand.New(rand.NewSource(seed))
		r := newRig(t, 256)
		snat := natTo(NATSrc, "192.0.2.1", "192.0.2.1")
		for i := range 100 {
			r.expect(udpFrame("10.0.0.1:"+port(i+1), server, 4), snat, Tracked|New|SNAT)
			if i%3 == 0 {
				r.expect(udpFrame(server, "192.0.2.1:"+port(i+1), 4), bare, Tracked|Established|Reply|DNAT)
			}
			if i%10 == 0 {
				n := uint32(rng.Intn(int(r.tr.head.fresh)))
				r.tr.end(n, r.tr.conns[n].generation(), endFlushed)
			}
		}
		live := map[Tuple]bool{}
		r.tr.Each(r.now, func(e *Entry) bool { live[e.Orig] = e.Replied; return true })
		// As after a kill, locks are held, and the index, counts and lists have arbitrary contents.
		r.tr.head.lock.Store(r.tr.epoch)
		r.tr.conns[3].meta.Store(r.tr.conns[3].meta.Load() | r.tr.epoch<<32)
		for range 40 {
			b := &r.tr.buckets[rng.Intn(len(r.tr.buckets))]
			b.signatures[rng.Intn(2)] = rng.Uint64()
			b.passed = rng.Uint32()
			k := &r.tr.links[rng.Intn(len(r.tr.links))]
			*k = links{[2]link{{rng.Uint32(), rng.Uint32()}, {rng.Uint32(), rng.Uint32()}}, rng.Uint32()}
		}
		r.tr.holders[0].lists[2].last, r.tr.ranks[0].count, r.tr.head.ranking.marks[1] = 7, 9, 77
		r.tr.zones[1].count, r.tr.head.count, r.tr.head.free = 77, 5, 9
		r.tr.members[0].lists[0].first, r.tr.zoneRankings[0].marks[2], r.tr.memberChains[5], r.tr.head.freeMember = 77, 9, 3, 5
		r.tr = NewTracker(Open(r.tr.Memory, 1), 1)
		check(t, r.tr.Table)
		if r.tr.Count() != len(live) {
			t.Fatalf("%d connections of %d", r.tr.Count(), len(live))
		}
		for o, replied := range live {
			src, dst := o.Addrs()
			want := uint8(Tracked | New)
			if replied {
				want = Tracked | Established
			}
			r.expect(udpFrame(netip.AddrPortFrom(src, o.SrcPort).String(), netip.AddrPortFrom(dst, o.DstPort).String(), 1), look, want)
		}
	}
}

// An engine is killed after each step between the eviction of a connection and the
// settlement of its seat. The next engine counts only live connections.
func TestRecoveryBetweenEvictionAndSeat(t *testing.T) {
	const records, zoneOfSeat = 64, 5
	for _, limited := range []bool{false, true} { // which limit makes room: the table's or the zone's
		for _, step := range []string{"keepSeat", "takeSeat", "dismiss"} {
			r := newRig(t, records)
			for i := range records {
				r.fromPort(uint32(i%2)).begin(i, zoneOfSeat, false)
			}
			if limited {
				r.tr.SetZoneLimit(zoneOfSeat, records)
			}
			killed := r.tr.Table
			killed.lock()
			if !killed.makeRoom(zoneOfSeat, 1) || !killed.seat.kept {
				t.Fatalf("%s, zone limited %v: no seat is kept", step, limited)
			}
			switch step {
			case "takeSeat":
				killed.takeSeat()
			case "dismiss":
				killed.settleSeat()
			}
			r.tr = NewTracker(Open(killed.Memory, 1), 1)
			count := func(moment string, want int) {
				t.Helper()
				check(t, r.tr.Table)
				if n, zone := r.tr.Count(), r.tr.ZoneCount(zoneOfSeat); n != want || zone != want {
					t.Fatalf("%s, zone limited %v, %s: %d connections, %d in the zone, want %d", step, limited, moment, n, zone, want)
				}
			}
			count("after the kill", records-1)
			for i := range 3 {
				r.fromPort(1).begin(1000+i, zoneOfSeat, false)
				count("then", records)
			}
		}
	}
}

// Open changes nothing in a table if the engine before was not killed.
func TestReopen(t *testing.T) {
	r := newRig(t, 64)
	r.expect(udpFrame(guest, server, 1), commit, Tracked|New)
	Init(r.tr.Memory, 99)
	r.tr = NewTracker(Open(r.tr.Memory, 2), 1)
	r.expect(udpFrame(server, guest, 1), look, Tracked|Established|Reply)
}

func BenchmarkTrack(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000, 1_000_000} {
		for _, kind := range []string{"udp", "tcp", "snat"} {
			b.Run(kind+"/"+port(n), func(b *testing.B) { benchTrack(b, n, kind) })
		}
	}
}

func benchFrame(h []byte, i int) {
	h[27], h[28], h[29] = byte(i>>20), byte(i>>12), byte(i>>4)
	h[34], h[35] = byte(i>>8&15|16), byte(i<<4)
}

func benchTrack(b *testing.B, n int, kind string) {
	tab := Open(newMemory(b, 1<<20), 1)
	tr := NewTracker(tab, 3)
	arena := packettest.NewArena(b, 1<<16)
	var batch packet.Batch
	var metas [packet.BatchSize]Meta
	frame := udpFrame("10.0.0.1:1000", server, 18)
	if kind == "tcp" {
		frame = tcpFrame("10.0.0.1:1000", server, tcpSegment{flags: "A", seq: 1, ack: 1, window: 1000, scale: -1})
	}
	var order []uint8
	for i := range packet.BatchSize {
		f := arena.Add(&batch, frame, packet.InnerHeader, 0)
		var k flowtable.Key
		flowtable.Extract(&batch, f, &k)
		order = append(order, uint8(i))
	}
	req := commit
	if kind == "snat" {
		req.NAT = NAT{Kind: NATSrc, Lo: [2]uint64{0, 0xc0000201}, Hi: [2]uint64{0, 0xc00002ff}}
	}
	now := uint64(1000 * second)
	at := 0
	batchOf := func(req *Request) {
		for i := range packet.BatchSize {
			metas[i] = Meta{}
			benchFrame(batch.Frames[i].Header(), at)
			if kind == "snat" {
				h := batch.Frames[i].Header()
				h[26] = 10
			}
			if at += 7919; at >= n {
				at %= n
			}
		}
		tr.Forget(^uint32(0))
		tr.Process(&batch, order, &metas, req, now)
	}
	for range (n + 31) / 32 * 2 {
		batchOf(&req)
	}
	req.Commit = false
	if req.NAT.Kind != NATNone {
		req.NAT = NAT{Kind: NATBare}
	}
	b.ResetTimer()
	for range b.N {
		batchOf(&req)
		now += 1000
	}
	b.StopTimer()
	if metas[0].State&Invalid != 0 || metas[0].Ref.Generation == 0 {
		b.Fatalf("%s", stateText(metas[0].State))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.BatchSize, "ns/frame")
	b.ReportMetric(float64(tab.Count()), "conns")
}

// BenchmarkCommit creates connections until the table is full, and then with
// evictions.
func BenchmarkCommit(b *testing.B) {
	for _, kind := range []string{"udp", "snat"} {
		b.Run(kind, func(b *testing.B) {
			tab := Open(newMemory(b, 1<<20), 1)
			tr := NewTracker(tab, 3)
			arena := packettest.NewArena(b, 1<<16)
			var batch packet.Batch
			var metas [packet.BatchSize]Meta
			var order []uint8
			for i := range packet.BatchSize {
				f := arena.Add(&batch, udpFrame("10.0.0.1:1000", server, 18), packet.InnerHeader, 0)
				var k flowtable.Key
				flowtable.Extract(&batch, f, &k)
				order = append(order, uint8(i))
			}
			req := commit
			if kind == "snat" {
				req.NAT = NAT{Kind: NATSrc, Lo: [2]uint64{0, 0xc0000201}, Hi: [2]uint64{0, 0xc00002ff}}
			}
			at := 0
			for range b.N {
				for i := range packet.BatchSize {
					metas[i] = Meta{}
					h := batch.Frames[i].Header()
					h[26] = 10
					benchFrame(h, at)
					at++
				}
				tr.Forget(^uint32(0))
				tr.Process(&batch, order, &metas, &req, 1000*second)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/packet.BatchSize, "ns/frame")
		})
	}
}
