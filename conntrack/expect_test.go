// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"math/rand"
	"testing"

	"weft/packet"
)

// checkExpectations fails unless the chains, lists, counts and free records of a table agree with its
// expectations.
func checkExpectations(t *testing.T, tab *Table) {
	t.Helper()
	used, chained := map[uint32]bool{}, 0
	var of [Holders]uint32
	for n := range tab.head.expects.fresh {
		if x := &tab.expectations[n]; x.expiresNS != 0 {
			used[n] = true
			of[x.sender.holder(x.zone)]++
		}
	}
	for i := range tab.chains {
		for at := tab.chains[i]; at != 0; at = tab.expectations[at-1].chain {
			if chained++; chained > len(tab.expectations) || !used[at-1] || tab.chainOf(&tab.expectations[at-1]) != &tab.chains[i] {
				t.Fatalf("chain %d has expectation %d, which belongs to another chain", i, at-1)
			}
		}
	}
	for i := range tab.expecters {
		l, count, before := &tab.expecters[i].records, uint32(0), uint32(0)
		for at := l.first; at != 0 && count <= l.count; at = tab.expectations[at-1].own.next {
			x := &tab.expectations[at-1]
			if x.own.prev != before || x.sender.holder(x.zone) != uint32(i) || !used[at-1] {
				t.Fatalf("the list of holder %d has expectation %d, which belongs to another holder", i, at-1)
			}
			before = at
			count++
		}
		if count != l.count || count != of[i] || l.last != before || tab.expectRanks[i].count != count {
			t.Fatalf("holder %d: %d in the list, count %d, rank count %d; want %d", i, count, l.count, tab.expectRanks[i].count, of[i])
		}
	}
	free := 0
	for at := tab.head.expects.free; at != 0 && free <= MaxExpectations; at = tab.expectations[at-1].chain {
		free++
	}
	if n := len(used); chained != n || tab.Expectations() != n || free+n != int(tab.head.expects.fresh) {
		t.Fatalf("%d expectations, %d in chains, count %d, %d free of %d", n, chained, tab.Expectations(), free, tab.head.expects.fresh)
	}
}

func (r *rig) parent(i int) Ref {
	r.t.Helper()
	m, _ := r.send(udpFrame(fmt.Sprintf("10.9.%d.%d:1", i>>8, i&0xff), server, 1), commit)
	if m.Drop != packet.DropNone {
		r.t.Fatalf("parent %d refused: %v", i, m.Drop)
	}
	return m.Ref
}

func expectationAt(parent Ref, source sender, zone, port uint16) expectation {
	return expectation{src: [2]uint64{0, 1}, dst: [2]uint64{0, 2}, zone: zone, dstPort: port, announced: port, proto: packet.ProtoTCP, parent: parent, sender: source}
}

func probeOf(t *Table, zone, port uint16) *probe {
	tuple := Tuple{Src: [2]uint64{0, 1}, Dst: [2]uint64{0, 2}, SrcPort: 9, DstPort: port, Zone: zone, Proto: packet.ProtoTCP}
	return &probe{words: tuple.words(t.head)}
}

// The table of expectations agrees with a map while parents (announcing connections)
// end, expectations expire, and engines are killed.
func TestExpectationsTwin(t *testing.T) {
	type key struct{ zone, port uint16 }
	for seed := range int64(20) {
		rng := rand.New(rand.NewSource(seed))
		r := newRig(t, 1024)
		slow := map[key]expectation{}
		var parents []Ref
		for i := range 40 {
			parents = append(parents, r.parent(i))
		}
		for step := range 2000 {
			k := key{uint16(rng.Intn(2)), uint16(rng.Intn(400))}
			switch rng.Intn(12) {
			case 0:
				r.now += uint64(rng.Intn(int(5 * second)))
				r.tr.Sweep(r.now)
			case 1:
				if i := rng.Intn(len(parents)); rng.Intn(20) == 0 {
					r.tr.Flush(Ref{parents[i].Number, r.tr.conns[parents[i].Number].generation()})
				}
			case 2, 3, 4, 5:
				source := sender{uint16(rng.Intn(5)), rng.Intn(4) == 0}
				e := expectationAt(parents[rng.Intn(len(parents))], source, k.zone, k.port)
				first, there := slow[k]
				there = there && r.tr.valid(&first, r.now)
				if got := r.tr.expect(&e, r.now); got == (there && first.parent != e.parent) {
					t.Fatalf("seed %d step %d: accepted %t beside %t %+v", seed, step, got, there, first)
				} else if !got {
					break
				}
				if there {
					e.sender = first.sender
				}
				e.expiresNS = r.now + expectationNS
				slow[k] = e
			case 6:
				if rng.Intn(50) == 0 { // a kill leaves only the records intact
					r.tr.head.lock.Store(r.tr.epoch)
					clear(r.tr.chains)
					r.tr.head.expects.free, r.tr.expecters[1].records.first = 700, 900
					r.tr = NewTracker(Open(r.tr.Memory, 1), 1)
				}
			default:
				take := rng.Intn(2) == 0
				got, ok := r.tr.expected(probeOf(r.tr.Table, k.zone, k.port), r.now, take)
				want, there := slow[k]
				there = there && r.tr.valid(&want, r.now)
				if ok != there || ok && (got.parent != want.parent || got.sender != want.sender || got.expiresNS != want.expiresNS) {
					t.Fatalf("seed %d step %d: %t %+v, expected %t %+v", seed, step, ok, got, there, want)
				}
				if take {
					delete(slow, k)
				}
			}
			if step%50 == 0 {
				checkExpectations(t, r.tr.Table)
			}
		}
		r.now += expectationNS + 1
		for range MaxExpectations {
			r.now += sweepGapNS
			r.tr.sweepExpectations(r.now)
		}
		checkExpectations(t, r.tr.Table)
		if n := r.tr.Expectations(); n != 0 {
			t.Errorf("%d expectations left, want 0", n)
		}
	}
}

// A port that announces connections without end evicts only its own oldest expectations.
func TestOthersTransfersStay(t *testing.T) {
	r := newRig(t, 1024)
	parent := r.parent(1)
	announce := func(source sender, zone, port uint16) {
		e := expectationAt(parent, source, zone, port)
		r.tr.expect(&e, r.now)
	}
	quiet := 0
	for i := range 8 * MaxExpectations {
		announce(sender{port: uint16(1 + i%5)}, uint16(10+i%7), uint16(i))
		if i%500 == 0 {
			announce(sender{7, true}, 3, uint16(quiet))
			announce(sender{port: 8}, 4, uint16(quiet))
			quiet++
		}
	}
	checkExpectations(t, r.tr.Table)
	for i := range quiet {
		for zone := range uint16(2) {
			if _, ok := r.tr.expected(probeOf(r.tr.Table, 3+zone, uint16(i)), r.now, false); !ok {
				t.Errorf("expectation %d of zone %d was evicted", i, 3+zone)
			}
		}
	}
	if _, ok := r.tr.expected(probeOf(r.tr.Table, 10, 0), r.now, false); ok || r.tr.Expectations() != MaxExpectations {
		t.Errorf("the heaviest holder's oldest expectation exists: %t, of %d in all", ok, r.tr.Expectations())
	}
	evicted := uint64(0)
	r.tr.ExpectationShares(func(s Share) {
		if evicted += s.Evicted; s.Guaranteed != MaxExpectations/7*7/8 || (s.Port == 8 || s.Zone == 3) && (s.Evicted != 0 || s.Used != uint32(quiet)) {
			t.Errorf("%+v", s)
		}
	})
	if want := uint64(8*MaxExpectations + 2*quiet - MaxExpectations); evicted != want {
		t.Errorf("%d evicted, expected %d", evicted, want)
	}
}

// The first announcement keeps its tuple while it is valid. Another connection's announcement of the
// same tuple is refused, and counted for its quota holder.
func TestFirstAnnouncementStays(t *testing.T) {
	r := newRig(t, 64)
	first, second := r.parent(1), r.parent(2)
	announce := func(parent Ref, port uint16) bool {
		e := expectationAt(parent, sender{port: port}, 1, 5001)
		return r.tr.expect(&e, r.now)
	}
	parent := func() Ref {
		e, _ := r.tr.expected(probeOf(r.tr.Table, 1, 5001), r.now, false)
		return e.parent
	}
	refused := func() (n [3]uint64) {
		r.tr.ExpectationShares(func(s Share) { n[s.Port] = s.Refused })
		return n
	}
	if !announce(first, 1) || announce(second, 2) || announce(second, 1) || parent() != first || refused() != [3]uint64{0, 1, 1} {
		t.Errorf("the later announcement: parent %v of %v and %v, refused %v", parent(), first, second, refused())
	}
	// A repeated announcement lasts longer, and still counts for its first holder.
	r.now += expectationNS / 2
	if !announce(first, 2) {
		t.Error("a repeated announcement was refused")
	}
	r.tr.ExpectationShares(func(s Share) {
		if s.Used != uint32(s.Port&1) {
			t.Errorf("port %d has %d expectations", s.Port, s.Used)
		}
	})
	r.now += expectationNS * 3 / 4
	if !r.tr.Flush(Ref{first.Number, r.tr.conns[first.Number].generation()}) {
		t.Fatal("the first connection has ended too early")
	}
	if !announce(second, 2) || parent() != second {
		t.Errorf("after the end of the first connection: parent %v of %v and %v", parent(), first, second)
	}
	checkExpectations(t, r.tr.Table)
}

// One client announces a port and the maxExpectedPorts ports after it. Another client behind the same
// translated address still gets a port when it announces the first of them.
func TestAnnouncedPortsAreNoFence(t *testing.T) {
	r := newRig(t, 64)
	fence, client := r.parent(1), r.parent(2)
	for i := range uint16(maxExpectedPorts + 1) {
		e := expectationAt(fence, sender{port: 1}, 1, 65535-32+i)
		if e.dstPort < ephemeralLo {
			e.dstPort += ephemeralLo
		}
		e.announced, e.translated = e.dstPort, true
		if port := e.dstPort; !r.tr.expect(&e, r.now) || e.dstPort != port {
			t.Fatalf("port %d became %d", port, e.dstPort)
		}
	}
	e := expectationAt(client, sender{port: 2}, 1, 65535-32)
	e.translated = true
	if !r.tr.expect(&e, r.now) || e.dstPort < ephemeralLo {
		t.Fatalf("no port for the client; the last one tried is %d", e.dstPort)
	}
	got, ok := r.tr.expected(probeOf(r.tr.Table, 1, e.dstPort), r.now, false)
	if !ok || got.parent != client || got.announced != 65535-32 {
		t.Errorf("expected %t %+v", ok, got)
	}
}
