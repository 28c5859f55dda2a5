// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"cmp"
	"net/netip"
	"slices"
)

// Quotas of the MAC table. An attacker that invents addresses on one port must not displace addresses
// of other ports, and must not use much CPU time of the control process. A tunnel port may have
// several remote VTEPs, which are called remotes here.
//
//   - A port has at most half of the table (PortLimit). At this limit a new address evicts
//     one of the port's own addresses.
//   - In a full table a new address evicts one from the port with the most addresses. A port
//     with at most Guarantee addresses therefore loses none.
//   - On a port with several remotes, the remote with the most addresses loses one.
//   - In a bridge with a limit of its own (Bounds), the port of this bridge with the most addresses
//     loses one.
//   - A port, or one remote of a port, may add learnRate new addresses a second.
const (
	// macPorts is the number of ports that can have Guarantee addresses each at the same time.
	macPorts = 1024
	// learnBurst is the number of new addresses that a port may add at once, and learnRate the number per
	// second. On a tunnel port, both apply to each remote VTEP. The table does not learn further addresses, so
	// frames to them are flooded.
	learnBurst = 8192
	learnRate  = 2000
	// A port as a whole may add remotesRate*learnRate addresses a second, from all its remote VTEPs.
	remotesRate = 4
	// maxMACHolders limits the address lists of a port. Each remote VTEP has its own list until the port has
	// this many lists. Further VTEPs share one list. A multicast group may bring that many VTEPs.
	maxMACHolders = 256
)

// macPort is the state of one port in the MAC table.
type macPort struct {
	number  uint32
	bridge  uint8 // number of the bridge of its addresses
	count   int   // number of addresses in all lists of the port
	holders map[netip.Addr]*macHolder
	rate    bucket // limits new addresses
	moves   bucket
	refused Refusals
}

// macHolder is the list of the addresses behind one remote VTEP, or behind a port without remote VTEPs. The
// least recently seen address is first.
type macHolder struct {
	remote         netip.Addr
	port           *macPort
	count          int
	oldest, newest *macEntry
	rate           bucket // limits new addresses
}

// Refusals counts, by reason, addresses that the MAC table refused to learn from
// one port.
type Refusals struct {
	Declared uint64 // another port has declared the address
	OtherVNI uint64 // a guest of another VNI is using the address
	Moves    uint64 // the address is in use elsewhere and moved too often, or is contested
	Rate     uint64 // new addresses exceeded learnRate
}

// Share says how many addresses a port has in the table, and how many the table has refused. It is for
// display.
type Share struct {
	Port    uint32
	Used    int
	Refused Refusals
}

// Guarantee returns the number of addresses that a port keeps even if other ports fill the table.
func (t *Table) Guarantee() int { return t.limit / macPorts }

// PortLimit returns the largest number of addresses of one port.
func (t *Table) PortLimit() int { return max(t.limit/2, 1) }

// Shares returns a Share for each existing port from which the table has tried to learn an address. The list
// is sorted by port.
func (t *Table) Shares() []Share {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]Share, 0, len(t.ports))
	for no, p := range t.ports {
		list = append(list, Share{no, p.count, p.refused})
	}
	slices.SortFunc(list, func(a, b Share) int { return cmp.Compare(a.Port, b.Port) })
	return list
}

func (t *Table) portOf(number uint32) *macPort {
	p := t.ports[number]
	if p == nil {
		p = &macPort{number: number, holders: map[netip.Addr]*macHolder{},
			rate:  bucket{perSecond: learnRate * remotesRate, burst: learnBurst * remotesRate},
			moves: bucket{perSecond: movesRate, burst: movesBurst}}
		t.ports[number] = p
	}
	return p
}

// holder returns the address list of a remote VTEP, and creates it if there is none. If the port has
// maxMACHolders lists, holder replaces an empty one. If no list is empty, it returns the list that all
// further VTEPs share.
func (p *macPort) holder(remote netip.Addr) *macHolder {
	if h := p.holders[remote]; h != nil {
		return h
	}
	if len(p.holders) >= maxMACHolders && remote.IsValid() {
		for r, h := range p.holders {
			if h.count == 0 && r.IsValid() {
				delete(p.holders, r)
				break
			}
		}
		if len(p.holders) >= maxMACHolders {
			return p.holder(netip.Addr{})
		}
	}
	h := &macHolder{remote: remote, port: p, rate: bucket{perSecond: learnRate, burst: learnBurst}}
	p.holders[remote] = h
	return h
}

// learns takes one token from the rate limit of the remote VTEP and one from that of its port. It returns
// false if a limit is exhausted, so that the new address must not be learned.
func (h *macHolder) learns(p *macPort, nowNS uint64) bool {
	return h.rate.take(nowNS) && p.rate.take(nowNS)
}

// heaviest returns the port's longest address list. The eviction takes the oldest address of this list. Of
// lists of the same length, heaviest returns the one whose remote VTEP has the lowest address.
func (p *macPort) heaviest() (largest *macHolder) {
	for _, h := range p.holders {
		if largest == nil || h.count > largest.count || h.count == largest.count && h.remote.Less(largest.remote) {
			largest = h
		}
	}
	return largest
}

// makeRoom evicts one address if the table or the bridge of segment s is full, or if the port "own" is at
// its quota. The caller then adds a new address of this segment to the port.
func (t *Table) makeRoom(own *macPort, s Segment) {
	b := t.bridgeOf(s)
	switch {
	case own.count >= t.PortLimit():
		t.evict(own)
	case b.limit != 0 && b.Now >= b.limit:
		t.evict(t.fullest(own, s))
	case t.count >= t.limit:
		most := own
		for _, p := range t.ports {
			if p.exceeds(most, own) {
				most = p
			}
		}
		t.evict(most)
	}
}

// fullest returns the port with the most addresses in the bridge of segment s. If several ports have equally
// many, it returns the port "own" if that is one of them, otherwise the one with the lowest number. The port
// "own" may be nil.
func (t *Table) fullest(own *macPort, s Segment) *macPort {
	most := own
	for _, p := range t.ports {
		if p.bridge == s.Bridge() && (most == nil || p.exceeds(most, own)) {
			most = p
		}
	}
	return most
}

// exceeds reports whether an eviction takes an address from port p rather than from port o. It takes it from
// the port with more addresses. Of ports with equally many, it takes it from the port "own", then from the
// one with the lower number.
func (p *macPort) exceeds(o, own *macPort) bool {
	return p.count > o.count || p.count == o.count && o != own && p.number < o.number
}

// evict removes the oldest address of the port's longest list.
func (t *Table) evict(p *macPort) {
	e := p.heaviest().oldest
	t.bridgeOf(e.segment).Evicted++
	t.remove(e)
}

// link appends e to its address list on port p, as most recently seen.
func (t *Table) link(e *macEntry, p *macPort) {
	h := p.holder(e.remote)
	e.holder, e.older, e.newer = h, h.newest, nil
	p.bridge = e.segment.Bridge()
	if h.newest != nil {
		h.newest.newer = e
	} else {
		h.oldest = e
	}
	h.newest = e
	h.count++
	p.count++
}

func (t *Table) unlink(e *macEntry) {
	h := e.holder
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		h.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		h.newest = e.older
	}
	h.count--
	h.port.count--
}

// bucket is a token bucket. It gains perSecond tokens a second and holds at most burst
// tokens.
type bucket struct {
	perSecond, burst uint64
	usedNS           uint64 // time at which the token bucket will be full again
}

// take takes one token at time nowNS. It reports false if the bucket is empty.
func (b *bucket) take(nowNS uint64) bool {
	step := 1_000_000_000 / b.perSecond
	due := max(b.usedNS, nowNS) + step
	if due > nowNS+b.burst*step {
		return false
	}
	b.usedNS = due
	return true
}
