// SPDX-License-Identifier: Apache-2.0

package conntrack

import "weft/packet"

// An expectation is an announced connection (see alg.go) that has not begun yet. The expectations are in a
// hash table. An expectation counts for the quota holder (port or zone, see holder.go) of the frame with
// the announcement. If all records are in use, the quota holder with the most expectations loses its oldest
// one.
//
// Two expectations cannot have the same tuple. While the first one is valid, an announcement of the same
// tuple by another connection is refused. The refusal is counted for the quota holder of this other
// connection. Without the rule, the second announcement could take the announced connection away from the
// connection that announced it first.

const (
	// MaxExpectations is the largest number of expectations (announced connections that have not begun) in
	// a table.
	MaxExpectations = 1024
	// expectationNS is the time for which the table keeps an announced connection that has not begun.
	expectationNS = 120_000_000_000
	// maxExpectedPorts is the largest number of other ports that the method expect tries. It tries other
	// ports if two clients behind the same translated address have announced the same port.
	maxExpectedPorts = 64
	// expectationsSwept is the number of records of announced connections that one step of the sweep checks
	// for expiry.
	expectationsSwept = 4
)

// expectation is a future connection from any port of src to port dstPort of dst. Its
// parent (another connection) has announced it. The table's lock guards it.
type expectation struct {
	src, dst  [2]uint64
	expiresNS uint64 // expiry time; it is written last and cleared first; 0: the record is free
	dstPort   uint16
	zone      uint16
	proto     uint8
	ipv6      uint8
	announcer uint8 // direction, in the parent, of the frame that announced this connection
	// translated is set if the parent is translated.
	translated bool
	parent     Ref    // parent: the connection that has announced the expectation
	announced  uint16 // announced port; dstPort may differ if the parent is translated
	sender     sender
	chain      uint32 // 1 + the number of the next record in the hash chain or free list
	own        link   // neighbours in the quota holder's list, oldest first
}

// expecter has the list and the counters of the expectations of one quota holder (a port or zone). The
// table's lock guards it. The control process reads the counters without the lock.
type expecter struct {
	records list   // oldest first
	refused uint32 // number of refused announcements
	evicted uint64
}

// expecting is the state of the table of announced connections that have not begun. The table's lock guards
// it.
type expecting struct {
	free, fresh uint32 // 1 + the number of the first free record, and the number of the first unused record
	hand        uint32 // record at which the next sweep begins
	_           uint32
	ranking     ranking // holders by number of expectations
}

func (t *Table) chainOf(e *expectation) *uint32 {
	s := &t.head.seeds
	h := fold(e.src[0]^s[0], e.src[1]^s[1]) ^ fold(e.dst[0]^s[2], e.dst[1]^s[3])
	h = fold(h^s[4], uint64(e.dstPort)<<32^uint64(e.zone)<<16^uint64(e.proto)<<8^uint64(e.ipv6)^s[5])
	return &t.chains[h%MaxExpectations]
}

// sameTuple reports whether the expectations x and e (entries for announced connections) have the same
// addresses, destination port, protocol and zone.
func (x *expectation) sameTuple(e *expectation) bool {
	return x.dst == e.dst && x.src == e.src && x.dstPort == e.dstPort && x.zone == e.zone && x.proto == e.proto && x.ipv6 == e.ipv6
}

// expectationOfTuple returns the number of the expectation (entry for an announced connection) with the
// tuple of e, valid or not. If there is none, it returns the constant none. The caller holds the table's
// lock.
func (t *Table) expectationOfTuple(e *expectation) uint32 {
	for at := *t.chainOf(e); at != 0; at = t.expectations[at-1].chain {
		if t.expectations[at-1].sameTuple(e) {
			return at - 1
		}
	}
	return none
}

// valid reports whether expectation x has not expired and its parent (the announcing connection) has
// not ended.
func (t *Table) valid(x *expectation, now uint64) bool {
	up := &t.conns[x.parent.Number%uint32(len(t.conns))]
	return x.expiresNS >= now && up.generation()&1 != 0 && up.born == x.parent.Generation
}

// expect adds an expectation (an entry for an announced connection). If another client behind the same
// translated address has announced the same port, it changes e.dstPort to a free port. It returns false if
// the expectation of another announcement has the tuple.
func (t *Table) expect(e *expectation, now uint64) bool {
	t.lock()
	defer t.unlock()
	at := t.expectationOfTuple(e)
	for i := 0; at != none && t.clashes(at, e, now) && e.translated && e.proto == packet.ProtoTCP && i < maxExpectedPorts; i++ {
		e.dstPort = t.otherPort(e, i)
		at = t.expectationOfTuple(e)
	}
	if at != none {
		x := &t.expectations[at]
		if t.clashes(at, e, now) {
			t.expecters[e.sender.holder(e.zone)].refused++
			return false
		}
		if t.valid(x, now) {
			e.sender = x.sender // a repeated announcement from another port counts for the first sender
		}
		t.forgetExpectation(at)
	} else if x := &t.head.expects; t.head.expecting.Load() == MaxExpectations {
		heavy := x.ranking.holderToEvict(t.expectRanks, e.sender.holder(e.zone)) % Holders
		t.expecters[heavy].evicted++
		t.forgetExpectation(t.expecters[heavy].records.first - 1)
	}
	t.addExpectation(e, now+expectationNS)
	return true
}

// otherPort returns another port for expectation e (an entry for an announced connection), whose port is
// taken. triesBefore is the number of earlier calls for e. Only the first returned port is predictable, so
// nobody can block all the others by announcing them first.
func (t *Table) otherPort(e *expectation, triesBefore int) uint16 {
	if triesBefore == 0 && e.dstPort < 0xffff {
		return max(e.dstPort+1, ephemeralLo)
	}
	h := fold(t.head.seeds[4]^uint64(e.dstPort)<<16^uint64(triesBefore), t.head.seeds[5]^uint64(e.parent.Generation)<<32^uint64(e.parent.Number))
	return ephemeralLo + uint16(h%(1<<16-ephemeralLo))
}

// clashes reports whether the expectation with number index is valid and belongs to another announcement
// than e does.
func (t *Table) clashes(index uint32, e *expectation, now uint64) bool {
	x := &t.expectations[index]
	return (x.parent != e.parent || x.announced != e.announced) && t.valid(x, now)
}

// addExpectation adds expectation e (an entry for an announced connection) to the table. The caller holds
// the table's lock and has made sure that a record is free.
func (t *Table) addExpectation(e *expectation, expiresNS uint64) {
	h := &t.head.expects
	n := h.free - 1
	if n == none {
		n = h.fresh
		h.fresh++
	} else {
		h.free = t.expectations[n].chain
	}
	x := &t.expectations[n]
	*x = *e
	x.expiresNS = expiresNS
	t.linkExpectation(n)
}

// linkExpectation adds the expectation with number n, whose record is already written, to its hash chain
// and to the list of its quota holder. The caller holds the table's lock.
func (t *Table) linkExpectation(n uint32) {
	x := &t.expectations[n]
	first, i := t.chainOf(x), x.sender.holder(x.zone)
	x.chain, *first = *first, n+1
	l := &t.expecters[i].records
	x.own = link{prev: l.last}
	if l.last != 0 {
		t.expectations[l.last-1].own.next = n + 1
	} else {
		l.first = n + 1
	}
	l.last = n + 1
	l.count++
	t.head.expects.ranking.set(t.expectRanks, i, l.count)
	if x.sender.tunnel {
		t.zones[x.zone].tunnelled = true
	}
	t.head.expecting.Add(1)
}

// forgetExpectation removes expectation n (an entry for an announced connection) and frees its record. The
// caller holds the table's lock.
func (t *Table) forgetExpectation(n uint32) {
	x := &t.expectations[n]
	x.expiresNS = 0
	at := t.chainOf(x)
	for *at != n+1 {
		at = &t.expectations[*at-1].chain
	}
	*at = x.chain
	i := x.sender.holder(x.zone)
	l := &t.expecters[i].records
	if x.own.prev != 0 {
		t.expectations[x.own.prev-1].own.next = x.own.next
	} else {
		l.first = x.own.next
	}
	if x.own.next != 0 {
		t.expectations[x.own.next-1].own.prev = x.own.prev
	} else {
		l.last = x.own.prev
	}
	l.count--
	h := &t.head.expects
	h.ranking.set(t.expectRanks, i, l.count)
	x.chain, h.free = h.free, n+1
	t.head.expecting.Add(^uint32(0))
}

// expected returns a copy of the valid expectation (entry for an announced connection) with the tuple p of
// a frame. If take is true, it removes the expectation. Usually no expectation has the hash of the tuple,
// and expected takes no lock.
func (t *Table) expected(p *probe, now uint64, take bool) (e expectation, ok bool) {
	if t.head.expecting.Load() == 0 {
		return e, false
	}
	k := p.words.tuple(&p.long)
	want := expectation{src: k.Src, dst: k.Dst, dstPort: k.DstPort, zone: k.Zone, proto: k.Proto}
	if k.IPv6 {
		want.ipv6 = 1
	}
	if *t.chainOf(&want) == 0 {
		return e, false
	}
	t.lock()
	defer t.unlock()
	at := t.expectationOfTuple(&want)
	if at == none {
		return e, false
	}
	if e = t.expectations[at]; !t.valid(&e, now) {
		t.forgetExpectation(at)
		return e, false
	}
	if take {
		t.forgetExpectation(at)
	}
	return e, true
}

// sweepExpectations removes expectations (entries for announced connections) that have expired or whose
// announcing connection has ended. A call checks the next expectationsSwept records.
func (t *Table) sweepExpectations(now uint64) {
	if t.head.expecting.Load() == 0 {
		return
	}
	t.lock()
	defer t.unlock()
	h := &t.head.expects
	for range expectationsSwept {
		if h.hand >= h.fresh {
			h.hand = 0
		}
		if x := &t.expectations[h.hand]; x.expiresNS != 0 && !t.valid(x, now) {
			t.forgetExpectation(h.hand)
		}
		h.hand++
	}
}

// rebuildExpectations repairs the hash chains, lists and free records of announced connections after a
// crash of the engine.
func (t *Table) rebuildExpectations() {
	clear(t.chains)
	t.eachHolder(func(i uint32) { t.expectRanks[i], t.expecters[i].records = rank{}, list{} })
	h := &t.head.expects
	*h = expecting{fresh: min(h.fresh+1, MaxExpectations)}
	t.head.expecting.Store(0)
	for n := range h.fresh {
		if x := &t.expectations[n]; x.expiresNS != 0 {
			t.linkExpectation(n)
		} else {
			x.chain, h.free = h.free, n+1
		}
	}
}

// ExpectationShares calls visit for each quota holder (port or zone) with announced connections that have
// not begun, or with some that were evicted or refused. Workers continue meanwhile.
func (m *Memory) ExpectationShares(visit func(Share)) {
	m.eachHolder(func(i uint32) {
		if x := &m.expecters[i]; x.records.count != 0 || x.evicted != 0 || x.refused != 0 {
			s := shareOf(i)
			s.Used, s.Limit, s.Evicted, s.Refused = x.records.count, MaxExpectations, x.evicted, uint64(x.refused)
			s.Guaranteed = m.head.expects.ranking.fairShare(m.expectRanks, i, MaxExpectations)
			visit(s)
		}
	})
}

// Expectations returns the number of announced connections that have not begun.
func (m *Memory) Expectations() int { return int(m.head.expecting.Load()) }
