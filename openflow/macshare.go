package openflow

import (
	"cmp"
	"net/netip"
	"slices"
)

// What one port may take of the table, so that addresses made up on it push out none
// of the others' and cost control a bounded part of its time:
//
//   - at most half of the table (PortLimit): then its own make room;
//   - in a full table the port that has most makes room, so that no port with at most
//     Guarantee addresses loses one;
//   - of a port with several remotes, the remote that has most makes room;
//   - learnRate new addresses a second by port, or by remote.
const (
	// macPorts is the number of ports that a guarantee is for, the most there are.
	macPorts = 1024
	// learnBurst new addresses of one place are learnt at once, and learnRate a second.
	// Further ones are not learnt until later frames; frames to them are flooded.
	learnBurst = 8192
	learnRate  = 2000
	// remotesRate is how many remotes at full rate a port's rate is for, all together.
	remotesRate = 4
	// maxMACHolders is the number of remotes of a port that are told apart, the most
	// that a port names. Further ones, which only a multicast group has, count as one.
	maxMACHolders = 256
)

// macPort is what the table knows of a port.
type macPort struct {
	no      uint32
	count   int // of its holders together
	holders map[netip.Addr]*macHolder
	rate    bucket // of new addresses, of all remotes
	moves   bucket
	refused MACRefusals
}

// macHolder is the addresses behind one remote of a port, by when they were seen; of a
// port without remotes, all of them.
type macHolder struct {
	remote         netip.Addr
	port           *macPort
	count          int
	oldest, newest *macEntry
	rate           bucket // of new addresses
}

// MACRefusals counts what was not learnt of a port's frames, by reason.
type MACRefusals struct {
	Declared uint64 // another port has declared the address
	OtherVNI uint64 // the address is alive in another VNI
	Moves    uint64 // the address is alive elsewhere, and moved too often
	Rate     uint64 // more new addresses than learnRate
}

// MACShare is a port's part of the table.
type MACShare struct {
	Port    uint32
	Used    int
	Refused MACRefusals
}

// Guarantee is the number of addresses that a port keeps whatever others learn.
func (t *MACTable) Guarantee() int { return t.limit / macPorts }

// PortLimit is the most addresses that one port has.
func (t *MACTable) PortLimit() int { return max(t.limit/2, 1) }

// Shares lists the ports that have learnt anything, by number.
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

// holder is that of a remote. Empty ones make room where there are too many.
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

// learns takes a new address from the rates of the place.
func (h *macHolder) learns(p *macPort, nowNS uint64) bool {
	return h.rate.take(nowNS) && p.rate.take(nowNS)
}

// heaviest is the holder that has most: of equals, the one that comes first.
func (p *macPort) heaviest() (most *macHolder) {
	for _, h := range p.holders {
		if most == nil || h.count > most.count || h.count == most.count && h.remote.Less(most.remote) {
			most = h
		}
	}
	return most
}

// makeRoom removes an address if a new one of the port has no room.
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

// link makes e the newest of its place on p.
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

// bucket is a rate: perSecond on average, burst at once.
type bucket struct {
	perSecond, burst uint64
	usedNS           uint64 // the time by which all that was taken is paid for
}

// take reports whether one more is within the rate at nowNS.
func (b *bucket) take(nowNS uint64) bool {
	step := 1_000_000_000 / b.perSecond
	due := max(b.usedNS, nowNS) + step
	if due > nowNS+b.burst*step {
		return false
	}
	b.usedNS = due
	return true
}
