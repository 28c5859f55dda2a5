// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"cmp"
	"net/netip"
	"slices"
)

// Quotas. An attacker that makes up addresses on one port must not displace those of
// other ports, and may cost control only a bounded part of its time:
//
//   - A port has at most half of the table (PortLimit). At that limit it loses its own
//     addresses.
//   - In a full table the port with the most addresses loses one. A port with at most
//     Guarantee addresses therefore loses none.
//   - On a port with several remotes, the remote with the most addresses loses one.
//   - A place may add learnRate new addresses a second.
const (
	// macPorts is the maximum number of ports, which the guarantee is computed for.
	macPorts = 1024
	// A place may add learnBurst new addresses at once, and learnRate a second on
	// average. Further addresses are learnt from later frames; until then frames to
	// them are flooded.
	learnBurst = 8192
	learnRate  = 2000
	// remotesRate is the rate of a port, as a multiple of the rate of one remote.
	remotesRate = 4
	// maxMACHolders bounds the remotes of a port that are told apart; a port names at
	// most as many. Only a multicast group can have more; these count as one.
	maxMACHolders = 256
)

// macPort is the table's state of a port.
type macPort struct {
	no      uint32
	count   int // number of addresses of all holders
	holders map[netip.Addr]*macHolder
	rate    bucket // limits new addresses of all remotes together
	moves   bucket
	refused MACRefusals
}

// macHolder lists the addresses behind one remote of a port, by the time they were
// last seen. A port without remotes has one holder.
type macHolder struct {
	remote         netip.Addr
	port           *macPort
	count          int
	oldest, newest *macEntry
	rate           bucket // limits new addresses
}

// MACRefusals counts refusals to learn from a port's frames, by reason.
type MACRefusals struct {
	Declared uint64 // another port has declared the address
	OtherVNI uint64 // the address is alive in another VNI
	Moves    uint64 // the address is alive at another place and moved too often
	Rate     uint64 // new addresses exceeded learnRate
}

// MACShare is a port's use of the table.
type MACShare struct {
	Port    uint32
	Used    int
	Refused MACRefusals
}

// Guarantee returns the number of addresses that a port keeps whatever other ports
// learn.
func (t *MACTable) Guarantee() int { return t.limit / macPorts }

// PortLimit returns the maximum number of addresses of one port.
func (t *MACTable) PortLimit() int { return max(t.limit/2, 1) }

// Shares returns the use of each port that has learnt an address, by port number.
func (t *MACTable) Shares() []MACShare {
	list := make([]MACShare, 0, len(t.ports))
	for no, p := range t.ports {
		list = append(list, MACShare{no, p.count, p.refused})
	}
	slices.SortFunc(list, func(a, b MACShare) int { return cmp.Compare(a.Port, b.Port) })
	return list
}

func (t *MACTable) portOf(no uint32) *macPort {
	p := t.ports[no]
	if p == nil {
		p = &macPort{no: no, holders: map[netip.Addr]*macHolder{},
			rate:  bucket{perSecond: learnRate * remotesRate, burst: learnBurst * remotesRate},
			moves: bucket{perSecond: movesRate, burst: movesBurst}}
		t.ports[no] = p
	}
	return p
}

// holder returns the holder of a remote. If there are too many holders, it removes an
// empty one.
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

// learns reports whether the rates of the place and its port allow a new address, and
// counts it.
func (h *macHolder) learns(p *macPort, nowNS uint64) bool {
	return h.rate.take(nowNS) && p.rate.take(nowNS)
}

// heaviest returns the holder with the most addresses; among equals the one with the
// lowest remote.
func (p *macPort) heaviest() (most *macHolder) {
	for _, h := range p.holders {
		if most == nil || h.count > most.count || h.count == most.count && h.remote.Less(most.remote) {
			most = h
		}
	}
	return most
}

// makeRoom removes an address if the table or the port's quota has no room for a new
// one of the port.
func (t *MACTable) makeRoom(own *macPort) {
	if own.count >= t.PortLimit() {
		t.remove(own.heaviest().oldest)
		return
	}
	if t.count < t.limit {
		return
	}
	most := own
	for _, p := range t.ports {
		if p.count > most.count || p.count == most.count && most != own && p.no < most.no {
			most = p
		}
	}
	t.remove(most.heaviest().oldest)
}

// link appends e to the list of its place on p, as the most recently seen.
func (t *MACTable) link(e *macEntry, p *macPort) {
	h := p.holder(e.remote)
	e.holder, e.older, e.newer = h, h.newest, nil
	if h.newest != nil {
		h.newest.newer = e
	} else {
		h.oldest = e
	}
	h.newest = e
	h.count++
	p.count++
}

func (t *MACTable) unlink(e *macEntry) {
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

// bucket is a token bucket: perSecond on average, burst at once.
type bucket struct {
	perSecond, burst uint64
	usedNS           uint64 // time at which the tokens taken so far are refilled
}

// take takes a token at nowNS. It reports false if the rate is exceeded.
func (b *bucket) take(nowNS uint64) bool {
	step := 1_000_000_000 / b.perSecond
	due := max(b.usedNS, nowNS) + step
	if due > nowNS+b.burst*step {
		return false
	}
	b.usedNS = due
	return true
}
