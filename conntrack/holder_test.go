// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"fmt"
	"math/rand"
	"net/netip"
	"sync"
	"testing"

	"weft/packet"
)

func (r *rig) fromPort(port uint32) *rig { r.port = port; return r }

// begin begins connection i in a zone, from an address 10.port.x.y. If answered is set, the connection
// also gets an answer. begin returns the drop reason if the connection is refused.
func (r *rig) begin(i int, zone uint16, answered bool) packet.DropReason {
	r.t.Helper()
	in := commit
	in.Zone = zone
	src := fmt.Sprintf("10.%d.%d.%d:%d", r.port, i>>8&0xff, i&0xff, 1000+i>>16)
	m, _ := r.send(udpFrame(src, server, 1), in)
	if m.Drop != packet.DropNone || !answered {
		return m.Drop
	}
	in.Commit = false
	if m, _ = r.send(udpFrame(server, src, 1), in); m.State != Tracked|Established|Reply {
		r.t.Fatalf("answer of connection %d has ct_state %s", i, stateText(m.State))
	}
	return packet.DropNone
}

func (r *rig) lives(port uint32) int { return int(r.tr.ranks[port].count) }

// Two ports fill the table with answered connections. A third port can still begin a hundred connections,
// which are not evicted: in its own zone, in the zone of the two ports, or through a tunnel.
func TestOthersGetConnectionsInAFullTable(t *testing.T) {
	for _, zone := range []uint16{0, 9} {
		r := newRig(t, 1024)
		for i := range 1000 {
			r.fromPort(1).begin(i, 0, true)
			r.fromPort(2).begin(i, 0, true)
		}
		if r.tr.Count() != 1024 {
			t.Fatalf("%d connections, want a full table", r.tr.Count())
		}
		for i := range 100 {
			if reason := r.fromPort(3).begin(i, zone, true); reason != packet.DropNone {
				t.Fatalf("zone %d: connection %d refused: %v", zone, i, reason)
			}
		}
		for i := range 2000 {
			r.fromPort(uint32(1+i%2)).begin(2000+i, 0, true)
			r.fromPort(uint32(1+i%2)).begin(20000+i, 0, false)
		}
		check(t, r.tr.Table)
		if n := r.lives(3); n != 100 {
			t.Errorf("zone %d: %d of 100 connections left", zone, n)
		}
		if r.tr.Counters().RefusedLimit == 0 || r.tr.holders[1].evicted+r.tr.holders[2].evicted < 100 || r.tr.holders[3].evicted+r.tr.holders[3].refused != 0 {
			t.Errorf("unexpected counters %+v or holders %+v", r.tr.Counters(), r.tr.holders[:4])
		}
	}
}

// A flood without answers evicts few connections of other ports, and hardly any
// established one.
func TestFloodTakesNoEstablished(t *testing.T) {
	r := newRig(t, 1024)
	for i := range 1024 {
		r.fromPort(1).begin(i, 0, true)
	}
	for i := range 5000 {
		if reason := r.fromPort(2).begin(i, 0, false); reason != packet.DropNone {
			t.Fatalf("connection %d refused: %v", i, reason)
		}
	}
	check(t, r.tr.Table)
	if n := r.lives(1); n != 1024-minUnanswered {
		t.Errorf("%d of 1024 answered connections left", n)
	}
	// The new connection of the flooding port is refused; no established connection of
	// the port is evicted.
	if reason := r.fromPort(1).begin(5000, 0, false); reason != packet.DropConnLimit {
		t.Errorf("drop reason %v, want the connection refused by the limit", reason)
	}
}

// A port floods the table in one zone. Of the port's connections, only those in this zone are evicted.
func TestFloodedZoneOfAPortPays(t *testing.T) {
	r := newRig(t, 64)
	for i := range 5 {
		r.fromPort(1).begin(i, 3, false)
	}
	for i := range 200 {
		r.fromPort(1).begin(100+i, 4, false)
	}
	check(t, r.tr.Table)
	if n := r.tr.ZoneCount(3); n != 5 {
		t.Errorf("%d of 5 connections left in the other zone", n)
	}
}

// A flood through a tunnel in one zone does not evict connections of another zone.
func TestTunnelledZonesAreToldApart(t *testing.T) {
	r := newRig(t, 512)
	tunnelled := func(i int, zone uint16, back bool) packet.DropReason {
		in := commit
		in.Zone, in.Tunnelled = zone, 1
		src := fmt.Sprintf("10.77.%d.%d:9", i>>8, i&0xff)
		m, _ := r.send(udpFrame(src, server, 1), in)
		if back && m.Drop == packet.DropNone {
			in.Commit = false
			r.send(udpFrame(server, src, 1), in)
		}
		return m.Drop
	}
	for i := range 600 {
		tunnelled(i, 5, true)
	}
	for i := range 50 {
		if reason := tunnelled(i, 7, true); reason != packet.DropNone {
			t.Fatalf("connection %d refused: %v", i, reason)
		}
	}
	for i := range 600 {
		tunnelled(1000+i, 5, i%2 == 0)
	}
	check(t, r.tr.Table)
	var of [2]Share
	r.tr.Shares(func(s Share) { of[s.Zone/2-2] = s })
	if of[0].Used != 462 || of[1].Used != 50 || of[0].Evicted < 50 || of[0].Refused == 0 || of[1].Evicted+of[1].Refused != 0 ||
		of[1].Guaranteed != 224 || of[1].Limit != 512 {
		t.Errorf("unexpected quotas %+v", of)
	}
}

// The lists and counts of the quota holders agree with the records after random operations, after kills
// of the engine, and after the table is saved and loaded.
func TestHoldersTwin(t *testing.T) {
	for seed := range int64(10) {
		rng := rand.New(rand.NewSource(seed))
		r := newRig(t, 128)
		for i := range 1500 {
			r.now += uint64(rng.Intn(int(second)))
			r.fromPort(uint32(rng.Intn(9))).begin(rng.Intn(500), uint16(rng.Intn(3)), rng.Intn(3) > 0)
			if n := uint32(rng.Intn(128)); rng.Intn(5) == 0 && n < r.tr.head.fresh {
				r.tr.end(n, r.tr.conns[n].generation(), endFlushed)
			}
			r.tr.Sweep(r.now)
			if i%100 == 0 {
				check(t, r.tr.Table)
			}
		}
		counts := fmt.Sprint(r.tr.ranks[:10])
		var file bytes.Buffer
		if err := r.tr.Save(&file, "boot", r.now); err != nil {
			t.Fatal(err)
		}
		r.tr.head.lock.Store(r.tr.epoch)
		clear(r.tr.ranks[:7])
		r.tr = NewTracker(Open(r.tr.Memory, 1), 1)
		check(t, r.tr.Table)
		live := r.tr.Count()
		m := newMemory(t, 128)
		n, err := m.Load(&file, "boot", r.now)
		if err != nil || n > live {
			t.Fatalf("%d of %d connections loaded: %v", n, live, err)
		}
		check(t, Open(m, 1))
		if n == live && fmt.Sprint(counted(m.ranks)) != fmt.Sprint(counted(r.tr.ranks)) {
			t.Errorf("counts by holder after loading %v, want %v", counted(m.ranks), counts)
		}
	}
}

func counted(ranks []rank) (counts []uint32) {
	for i := range ranks {
		counts = append(counts, ranks[i].count)
	}
	return counts[:16]
}

// While the ports of several workers flood the table, another port can begin its few
// connections.
func TestHoldersTogether(t *testing.T) {
	const records, workers = 1024, 4
	tab := Open(newMemory(t, records), workers)
	var group sync.WaitGroup
	errs := make(chan error, workers)
	done := make(chan struct{})
	for id := range workers - 1 {
		r := newRigOf(t, tab)
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				r.fromPort(uint32(1+id)).attack(i%60000, i%3 > 0)
			}
		}()
	}
	quiet := newRigOf(t, tab)
	for tab.Count() < records {
		quiet.fromPort(9).attack(0, true)
	}
	for i := range 100 {
		if reason := quiet.fromPort(10).attack(i, true); reason != packet.DropNone {
			errs <- fmt.Errorf("connection %d refused: %v", i, reason)
			break
		}
	}
	close(done)
	group.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	check(t, tab)
	if n := tab.ranks[10].count; n != 100 {
		t.Errorf("%d of 100 connections left", n)
	}
}

func (r *rig) attack(i int, answered bool) packet.DropReason {
	in := commit
	src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(r.port), byte(i >> 8), byte(i)}), 1000).String()
	m, _ := r.send(udpFrame(src, server, 1), in)
	if m.Drop != packet.DropNone || !answered {
		return m.Drop
	}
	in.Commit = false
	r.send(udpFrame(server, src, 1), in)
	return packet.DropNone
}
