// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"weft/packet"
)

// One port fills a zone that has a limit. Another port can still use half of the zone,
// less an eighth. A third port, which uses another zone, loses nothing.
func TestOthersGetConnectionsInAFullZone(t *testing.T) {
	r := newRig(t, 1024)
	r.tr.SetZoneLimit(5, 200)
	for i := range 50 {
		r.fromPort(3).begin(i, 6, true)
	}
	for i := range 300 {
		r.fromPort(1).begin(i, 5, true)
	}
	for i := range 87 {
		if reason := r.fromPort(2).begin(i, 5, true); reason != packet.DropNone {
			t.Fatalf("connection %d refused: %v", i, reason)
		}
	}
	for i := range 1000 {
		r.fromPort(1).begin(1000+i, 5, i%2 == 0)
	}
	check(t, r.tr.Table)
	if n := r.tr.ZoneCount(5); n != 200 || r.lives(2) != 87 || r.lives(3) != 50 {
		t.Errorf("%d connections in the zone, ports 2 and 3 have %d and %d, expected 200, 87 and 50", n, r.lives(2), r.lives(3))
	}
	h := r.tr.holders
	evicted, refused := r.tr.ZoneLosses(5)
	if evicted != h[1].evicted || refused != h[1].refused || evicted < 87 || refused < 100 || h[2].evicted+h[2].refused+h[3].evicted != 0 {
		t.Errorf("the zone lost %d and was refused %d, holders %+v", evicted, refused, h[:4])
	}
}

// A flood in a zone at its limit evicts few connections of other ports.
func TestFloodInAFullZoneTakesNoEstablished(t *testing.T) {
	r := newRig(t, 1024)
	r.tr.SetDefaultZoneLimit(500)
	for i := range 500 {
		r.fromPort(1).begin(i, 5, true)
	}
	for i := range 2000 {
		if reason := r.fromPort(2).begin(i, 5, false); reason != packet.DropNone {
			t.Fatalf("connection %d refused: %v", i, reason)
		}
	}
	check(t, r.tr.Table)
	if n := r.lives(1); n != 500-minUnanswered {
		t.Errorf("%d of 500 answered connections left", n)
	}
}

// A member is freed when its last connection ends, so a table never needs more members than connections.
func TestMembersAreFreed(t *testing.T) {
	r := newRig(t, 64)
	for round := range 5 {
		for i := range 64 {
			r.fromPort(uint32(i%7)).begin(i, uint16(1000*round+i), true)
		}
		check(t, r.tr.Table)
		for n := range uint32(64) {
			r.tr.end(n, r.tr.conns[n].generation(), endFlushed)
		}
		check(t, r.tr.Table)
	}
	if n := r.tr.head.freshMember; n != 64 {
		t.Errorf("%d members were made for 64 records", n)
	}
}

// The rest of this file has a reference implementation of zone limits: a list of connections, oldest
// first.

type slowMember struct {
	port     uint32
	zone     uint16
	i        int
	answered bool
}

// victims returns the connections that may be evicted when a port begins a connection
// in a zone that is at its limit. refused reports whether the new connection may be
// refused.
func victims(conns []slowMember, zone uint16, port uint32) (allowed []slowMember, refused bool) {
	count, unanswered := map[uint32]uint32{}, uint32(0)
	for _, c := range conns {
		if c.zone == zone {
			count[c.port]++
			if c.port == port && !c.answered {
				unanswered++
			}
		}
	}
	most := uint32(0)
	for _, n := range count {
		most = max(most, n)
	}
	oldest := func(member uint32, established bool) *slowMember {
		for _, answered := range []bool{false, true} {
			if answered && !established {
				break
			}
			for i := range conns {
				if c := &conns[i]; c.zone == zone && c.port == member && c.answered == answered {
					return c
				}
			}
		}
		return nil
	}
	for of, n := range count {
		switch {
		case tierOf(count[port]) == tierOf(most) && of != port, tierOf(n) != tierOf(most):
			continue
		case of != port && unanswered >= minUnanswered:
			of = port
		}
		if c := oldest(of, of != port); c != nil {
			allowed = append(allowed, *c)
		} else {
			refused = true
		}
	}
	return allowed, refused
}

// A zone at its limit evicts only connections that the reference implementation
// allows.
func TestZoneLimitTwin(t *testing.T) {
	for seed := range seeds(20) {
		rng := rand.New(rand.NewSource(seed))
		r := newRig(t, 1024)
		limits := map[uint16]int{0: 1 + rng.Intn(40), 1: 100, 2: 1024}
		r.tr.SetZoneLimit(0, uint32(limits[0]))
		r.tr.SetDefaultZoneLimit(100)
		r.tr.SetZoneLimit(2, 1<<31)
		var conns []slowMember
		for i := range 1500 {
			c := slowMember{port: min(uint32(rng.Intn(12)), 5), zone: uint16(rng.Intn(3)), i: i, answered: rng.Intn(1+int(seed%4)) > 0}
			inZone := 0
			for _, other := range conns {
				if other.zone == c.zone {
					inZone++
				}
			}
			reason := r.fromPort(c.port).begin(i, c.zone, c.answered)
			full := inZone >= limits[c.zone]
			may, mayRefuse := victims(conns, c.zone, c.port)
			if reason != packet.DropNone {
				if !full || !mayRefuse {
					t.Fatalf("seed %d, connection %+v refused: %v; the zone has %d of %d", seed, c, reason, inZone, limits[c.zone])
				}
				continue
			}
			live := r.live()
			ended := slices.IndexFunc(conns, func(c slowMember) bool { return !live[c.name()] })
			switch {
			case !full && ended >= 0, full && ended < 0, full && !slices.Contains(may, conns[ended]):
				t.Fatalf("seed %d, connection %+v in a zone that has %d of %d: ended %d of %+v; expected one of %+v", seed, c, inZone, limits[c.zone], ended, conns, may)
			case full:
				conns = slices.Delete(conns, ended, ended+1)
			}
			if conns = append(conns, c); len(live) != len(conns) {
				t.Fatalf("seed %d: %d connections live, expected %d", seed, len(live), len(conns))
			}
		}
		check(t, r.tr.Table)
	}
}

func (c *slowMember) name() string {
	return fmt.Sprintf("10.%d.%d.%d:%d", c.port, c.i>>8&0xff, c.i&0xff, 1000+c.i>>16)
}

func (r *rig) live() map[string]bool {
	names := map[string]bool{}
	r.tr.Each(r.now, func(e *Entry) bool {
		src, _ := e.Orig.Addrs()
		names[fmt.Sprintf("%v:%d", src, e.Orig.SrcPort)] = true
		return true
	})
	return names
}

// A new connection evicts another one, whose seat (its part of the counts) stays for a moment. The counts are
// right if both connections belong to the same member or to different ones, and if the new connection
// is refused after the eviction.
func TestSeatsOfEvictedConnections(t *testing.T) {
	const records = 64
	r := newRig(t, records)
	count := func(step string, want int) {
		t.Helper()
		check(t, r.tr.Table)
		if n := r.tr.Count(); n != want {
			t.Errorf("%s: %d connections, want %d", step, n, want)
		}
		members := uint32(0)
		for m := range r.tr.head.freshMember {
			members += r.tr.memberRanks[m].count
		}
		if members != uint32(want) {
			t.Errorf("%s: %d connections of members, want %d", step, members, want)
		}
	}
	r.fromPort(1)
	for i := range records + 10 {
		r.begin(i, 1, false)
	}
	count("same member", records)
	r.begin(0, 2, false)
	count("same holder, another zone", records)
	r.fromPort(2).begin(0, 1, false)
	count("another holder", records)

	snat := natTo(NATSrc, "192.0.2.1", "192.0.2.1", 5000, 5000)
	r.send(udpFrame("10.1.9.1:1", server, 1), snat)
	count("translated", records)
	if m, _ := r.send(udpFrame("10.1.9.2:1", server, 1), snat); m.Drop != packet.DropNATExhausted {
		t.Fatalf("the second translation to one port is dropped as %v", m.Drop)
	}
	count("refused after the eviction", records-1)

	r.tr.SetZoneLimit(1, uint32(r.tr.ZoneCount(1)))
	for i := range 5 {
		r.begin(100+i, 1, false)
		count("zone at its limit", records-1)
	}
	r.begin(101, 3, false)
	r.tr.SetLimit(records / 2)
	r.begin(200, 1, false)
	count("zone and table at their limits", records-1)
}
