// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"math"
	"math/bits"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/packet"
)

// group executes a group. Each bucket gets the frame as it was before the group.
func (x *xlate) group(id uint32) {
	g := x.p.Group(id)
	if g == nil {
		x.note("the group does not exist")
		return
	}
	if !x.descend() {
		return
	}
	defer func() { x.depth-- }()
	x.groups = append(x.groups, ofproto.GroupHit{Group: g, Bucket: -1})
	switch g.Type {
	case openflow.GroupSelect:
		if i := x.choose(g); i >= 0 {
			x.bucket(g, i)
		}
		return
	case openflow.GroupFailover:
		for i := range g.Buckets {
			if x.live(&g.Buckets[i]) {
				x.bucket(g, i)
				return
			}
		}
		x.note("no bucket of the group is live")
		return
	}
	for i := range g.Buckets {
		x.bucket(g, i)
	}
}

func (x *xlate) bucket(g *openflow.Group, i int) {
	if x.halted || !x.step() {
		return
	}
	x.groups = append(x.groups, ofproto.GroupHit{Group: g, Bucket: i})
	b := &g.Buckets[i]
	flow, keep, tags, decs, queue := x.flow, x.keep, x.tags, x.decs, x.queue
	x.undone++
	x.buckets++
	x.list(b.Set)
	x.finishPause()
	x.undone--
	x.buckets--
	x.exited = false
	x.flow, x.keep, x.tags, x.decs, x.queue = flow, keep, tags, decs, queue
	x.dirty = true
}

// live reports whether the port or the group that a bucket watches is live. A bucket that watches
// nothing is live.
func (x *xlate) live(b *openflow.Bucket) bool { return x.liveBeyond(b, nil) }

// liveBeyond does the work of live. It does not enter the groups in visited again, because groups may
// watch each other in a circle.
func (x *xlate) liveBeyond(b *openflow.Bucket, visited map[uint32]bool) bool {
	if !x.step() {
		return false
	}
	if b.WatchPort == openflow.PortNone && b.WatchGroup == openflow.GroupAny {
		return true
	}
	if b.WatchPort != openflow.PortNone {
		x.usedPorts = true
		if port, ok := x.env.Port(b.WatchPort); ok && !port.Down {
			return true
		}
	}
	g := x.p.Group(b.WatchGroup)
	if g == nil || visited[g.ID] {
		return false
	}
	if visited == nil {
		visited = make(map[uint32]bool)
	}
	visited[g.ID] = true
	for i := range g.Buckets {
		if x.liveBeyond(&g.Buckets[i], visited) {
			return true
		}
	}
	return false
}

// choose returns the index of a live bucket for the frame's connection, or -1. A
// bucket's share is proportional to its weight. With weighted rendezvous hashing, a
// change of a bucket moves only its own connections.
func (x *xlate) choose(g *openflow.Group) int {
	best, most := -1, math.Inf(-1)
	hash := x.hashed(g) + g.Param*0x9e3779b97f4a7c15
	for i := range g.Buckets {
		b := &g.Buckets[i]
		if b.Weight == 0 || !x.live(b) {
			continue
		}
		u := float64(mix64(hash^mix64(uint64(b.ID)+1))>>11+1) / (1 << 53)
		if score := float64(b.Weight) / -math.Log(u); score > most || best < 0 {
			best, most = i, score
		}
	}
	if best < 0 {
		x.note("no bucket of the group is live")
	}
	return best
}

// hashed returns a hash of the fields that the group names. If it names none, it returns a hash of
// the connection.
func (x *xlate) hashed(g *openflow.Group) (h uint64) {
	if len(g.HashedFields()) == 0 {
		return x.connection()
	}
	for _, id := range g.HashedFields() {
		if x.hasField(id) {
			v := x.read(openflow.WholeField(id))
			h = mix64(h + mix64(v[0]+uint64(id)) + v[1])
		}
	}
	return h
}

// connection returns a hash of IP addresses, protocol and ports. For a frame without
// IP, it hashes Ethernet addresses, VLAN and EtherType, and the addresses of ARP. Both
// directions of a connection have the same hash. The megaflow matches all hashed fields.
func (x *xlate) connection() uint64 {
	eth := x.read(openflow.WholeField(openflow.FEthType))[1]
	endpoints := func(src, dst openflow.FieldID) uint64 {
		s, d := x.read(openflow.WholeField(src)), x.read(openflow.WholeField(dst))
		return mix64(s[0]+mix64(s[1])) ^ mix64(d[0]+mix64(d[1]))
	}
	var h uint64
	switch eth {
	case packet.EtherTypeIPv4:
		h = endpoints(openflow.FIPSrc, openflow.FIPDst)
	case packet.EtherTypeIPv6:
		h = endpoints(openflow.FIPv6Src, openflow.FIPv6Dst)
	default:
		x.VisitWord(flowtable.WEthSrc, flowtable.VLANID)
		h = endpoints(openflow.FEthSrc, openflow.FEthDst) + eth<<16 + x.flow[flowtable.WEthSrc]&flowtable.VLANID
		if openflow.NeedARP.Met(x) {
			h += endpoints(openflow.FARPSpa, openflow.FARPTpa)*3 + endpoints(openflow.FARPSha, openflow.FARPTha)*5
		}
		return mix64(h)
	}
	h += x.read(openflow.WholeField(openflow.FIPProto))[1]
	if openflow.NeedPorts.Met(x) {
		x.VisitWord(flowtable.WIP, (flowtable.FragAny|flowtable.FragLater)<<flowtable.FragShift)
		if x.flow[flowtable.WIP]>>flowtable.FragShift&flowtable.FragAny == 0 { // all fragments must take the same path
			h += endpoints(openflow.FTCPSrc, openflow.FTCPDst) * 3
		}
	}
	return mix64(h)
}

// mix64 scatters the bits of v (the finisher of SplitMix64).
func mix64(v uint64) uint64 {
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return bits.RotateLeft64(v^v>>31, 17)
}
