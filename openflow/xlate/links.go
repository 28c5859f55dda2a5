// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// multipath executes the action multipath: it selects a link by a hash of the frame, and stores the
// number of the link in the field Dst.
func (x *xlate) multipath(a *openflow.Action) {
	x.visitHashed(a.Links.Hashed)
	x.set(a.Dst, openflow.Value64(uint64(linkOf(a.Links, &x.flow))), a.Dst.Ones())
}

// bundle executes the action bundle: it sends the frame to a live member port, or stores the number
// of this port in the field Dst. Without a live member it sends nothing, or stores PortNone.
func (x *xlate) bundle(a *openflow.Action) {
	s := a.Links
	if s.Algorithm == openflow.BundleHRW && len(s.Members) > 1 {
		x.visitHashed(s.Hashed)
	}
	port := memberOf(s, &x.flow, x.memberLives)
	if port == openflow.PortNone {
		x.note("no member of the bundle is live")
	}
	if a.Dst.Field == openflow.FNone {
		x.output(port)
		return
	}
	x.set(a.Dst, openflow.Value64(uint64(port)), a.Dst.Ones())
}

// memberLives reports whether a port of a bundle is live. Reserved ports are always live,
// except LOCAL, which is live as an ordinary port is.
func (x *xlate) memberLives(number uint32) bool {
	if number >= openflow.PortInPort && number != openflow.PortLocal {
		return true
	}
	x.usedPorts = true
	port, ok := x.env.Port(number)
	return ok && !port.Down
}

// visitHashed adds the fields that linkHash reads to the megaflow's mask.
func (x *xlate) visitHashed(fields openflow.LinkFields) {
	visit := func(ids ...openflow.FieldID) {
		for _, id := range ids {
			x.read(openflow.WholeField(id))
		}
	}
	if fields == openflow.HashEthSrc {
		visit(openflow.FEthSrc)
		return
	}
	if fields == openflow.HashL4 || (fields == openflow.HashL3L4 || fields == openflow.HashL3L4UDP) && !openflow.NeedIP.Met(x) {
		visit(openflow.FEthSrc, openflow.FEthDst)
		x.VisitWord(flowtable.WEthSrc, flowtable.VLANID)
		x.VisitWord(flowtable.WIP, flowtable.VLANID<<flowtable.InnerTCIShift)
	}
	visit(openflow.FEthType)
	for _, side := range []struct {
		skipped openflow.LinkFields
		v4, v6  openflow.FieldID
	}{{openflow.HashNwDst, openflow.FIPSrc, openflow.FIPv6Src}, {openflow.HashNwSrc, openflow.FIPDst, openflow.FIPv6Dst}} {
		switch {
		case side.skipped == fields:
		case openflow.NeedIPv4.Met(x):
			visit(side.v4)
		case openflow.NeedIPv6.Met(x):
			visit(side.v6)
		}
	}
	if fields != openflow.HashL4 && fields != openflow.HashL3L4 && fields != openflow.HashL3L4UDP || !openflow.NeedIP.Met(x) {
		return
	}
	visit(openflow.FIPProto)
	x.VisitWord(flowtable.WIP, flowtable.FragAny<<flowtable.FragShift)
	if hashesPorts(fields, &x.flow) {
		visit(openflow.FTCPSrc, openflow.FTCPDst)
	}
}

// hashesPorts reports whether the hash of an IP frame includes its ports. All fragments of a
// frame must take the same link, so the hash of a fragment has no ports. As in Open vSwitch,
// only symmetric_l3l4+udp includes UDP ports.
func hashesPorts(fields openflow.LinkFields, f *openflow.Flow) bool {
	if f.Key().IsFragment() {
		return false
	}
	proto := openflow.WholeField(openflow.FIPProto).Get(f)[1]
	return proto == packet.ProtoTCP || proto == packet.ProtoSCTP || proto == packet.ProtoUDP && fields == openflow.HashL3L4UDP
}

// linkHash returns the hash of the fields of a frame. The symmetric hashes are equal for both
// directions of a connection.
func linkHash(s *openflow.LinkSpec, f *openflow.Flow) uint32 {
	get := func(id openflow.FieldID) openflow.Value128 { return openflow.WholeField(id).Get(f) }
	h := uint64(s.Basis)
	add := func(v openflow.Value128) { h = mix64(mix64(h+v[0]) + v[1]) }
	pair := func(a, b openflow.FieldID) {
		v, w := get(a), get(b)
		add(openflow.Value128{v[0] ^ w[0], v[1] ^ w[1]})
	}
	eth := get(openflow.FEthType)[1]
	ip := eth == packet.EtherTypeIPv4 || eth == packet.EtherTypeIPv6
	src, dst := openflow.FIPSrc, openflow.FIPDst
	if eth == packet.EtherTypeIPv6 {
		src, dst = openflow.FIPv6Src, openflow.FIPv6Dst
	}
	switch s.Hashed {
	case openflow.HashEthSrc:
		add(get(openflow.FEthSrc))
		return uint32(mix64(h))
	case openflow.HashNwSrc, openflow.HashNwDst:
		if s.Hashed == openflow.HashNwDst {
			src = dst
		}
		if ip {
			add(get(src))
		}
		return uint32(mix64(h))
	}
	if s.Hashed == openflow.HashL4 || s.Hashed != openflow.HashL3 && !ip {
		pair(openflow.FEthSrc, openflow.FEthDst)
		add(openflow.Value64((f[flowtable.WEthSrc] ^ f[flowtable.WIP]>>flowtable.InnerTCIShift) & flowtable.VLANID))
	}
	add(openflow.Value64(eth))
	if !ip {
		return uint32(mix64(h))
	}
	pair(src, dst)
	if s.Hashed != openflow.HashL3 {
		add(get(openflow.FIPProto))
		if hashesPorts(s.Hashed, f) {
			pair(openflow.FTCPSrc, openflow.FTCPDst)
		}
	}
	return uint32(mix64(h))
}

// linkOf returns the number of the link that multipath selects, 0 to s.MaxLink.
func linkOf(s *openflow.LinkSpec, f *openflow.Flow) uint16 {
	hash, links := linkHash(s, f), uint32(s.MaxLink)+1
	const manyLinks = 64 // hrw hashes each link; with more links it becomes iter_hash, as in Open vSwitch
	switch {
	case s.Algorithm == openflow.ModuloN:
		return uint16(hash % links)
	case s.Algorithm == openflow.HashThreshold:
		return uint16(uint64(hash) * uint64(links) >> 32)
	case s.Algorithm == openflow.MultipathHRW && links <= manyLinks:
		best, most := uint32(0), uint64(0)
		for i := range links {
			if weight := mixTwo(hash, i); weight >= most {
				best, most = i, weight
			}
		}
		return uint16(best)
	}
	modulus := s.Arg
	if s.Algorithm == openflow.MultipathHRW || modulus < links || modulus/2 > links {
		modulus = 1
		for modulus < links {
			modulus *= 2
		}
	}
	for i := uint32(0); ; i++ { // modulus is at most 2*links+1, so a step finds a link with a probability of almost 1/2
		if link := uint32(mixTwo(hash, i)) % modulus; link < links {
			return uint16(link)
		}
	}
}

func mixTwo(a, b uint32) uint64 { return mix64(mix64(uint64(a)<<32|uint64(b)) + 1) }

// memberOf returns the live member that bundle chooses, or PortNone.
func memberOf(s *openflow.LinkSpec, f *openflow.Flow, lives func(port uint32) bool) uint32 {
	chosen, most := openflow.PortNone, uint64(0)
	var hash uint32
	if s.Algorithm == openflow.BundleHRW && len(s.Members) > 1 {
		hash = linkHash(s, f)
	}
	for i, port := range s.Members {
		if !lives(port) {
			continue
		}
		if s.Algorithm == openflow.ActiveBackup {
			return port
		}
		if weight := mixTwo(hash, uint32(i)); chosen == openflow.PortNone || weight > most {
			chosen, most = port, weight
		}
	}
	return chosen
}
