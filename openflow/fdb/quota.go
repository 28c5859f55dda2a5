// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"cmp"
	"net/netip"
	"slices"
)

// Quotas of the MAC table. An attacker that invents addresses on one port must not
// displace addresses of other ports, nor use much of control's time:
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
	// macPorts is the number of ports that can have Guarantee addresses at once.
	macPorts = 1024
	// learnBurst is the number of new addresses that a port, or one of its remotes, may add at
	// once, learnRate the number per second. The table does not learn further addresses, so frames
	// to them are flooded.
	learnBurst = 8192
	learnRate  = 2000
	// remotesRate and learnRate multiplied are the rate of a whole port, over all its remotes.
	remotesRate = 4
	// maxMACHolders limits the address lists of a port. Each remote has a list of its own until
	// the limit. Further remotes, which a multicast group may bring, share one list.
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

// macHolder lists the addresses behind one remote, or behind a port without remotes,
// least recently seen first.
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

// Share is a port's use of the table, for display.
type Share struct {
	Port    uint32
	Used    int
	Refused Refusals
}

// Guarantee returns the number of addresses of a port that others cannot evict.
func (t *Table) Guarantee() int { return t.limit / macPorts }

// PortLimit returns the largest number of addresses of one port.
func (t *Table) PortLimit() int { return max(t.limit/2, 1) }

// Shares returns a Share for each existing port that has ever tried to add an address, sorted by port.
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

// holder returns the address list of a remote, or makes one. At maxMACHolders it replaces an
// empty list, or returns the list that further remotes share.
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

// learns takes a token for a new address from the rate of the remote and from that of its port.
// It reports whether both allow the address.
func (h *macHolder) learns(p *macPort, nowNS uint64) bool {
	return h.rate.take(nowNS) && p.rate.take(nowNS)
}

// heaviest returns the port's longest address list, whose oldest address is evicted. Of lists
// of the same length, the lowest remote wins.
func (p *macPort) heaviest() (largest *macHolder) {
	for _, h := range p.holders {
		if largest == nil || h.count > largest.count || h.count == largest.count && h.remote.Less(largest.remote) {
			largest = h
		}
	}
	return largest
}

// makeRoom evicts one address if the table or the bridge of segment s is full, or if the port "own" is
// at its quota. It runs before a new address of the segment is added to that port.
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

// fullest returns the port with the most addresses in the bridge of segment s. Of ports with the same
// number of addresses, it prefers the port "own", then the lowest number. own may be nil.
func (t *Table) fullest(own *macPort, s Segment) *macPort {
	most := own
	for _, p := range t.ports {
		if p.bridge == s.Bridge() && (most == nil || p.exceeds(most, own)) {
			most = p
		}
	}
	return most
}

// exceeds reports whether port p loses an address rather than port o.
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
