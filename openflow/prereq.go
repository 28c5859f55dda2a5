// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"weft/flowtable"
	"weft/packet"
)

// prereq is a field's prerequisite (ovs-fields(7)). A match on the field must meet the
// prerequisite. A frame must meet it before an action touches the field.
type prereq uint8

const (
	needNothing prereq = iota
	needVLAN
	needARP
	needIPv4
	needIPv6
	needIP
	needTCP
	needUDP
	needSCTP
	needICMP
	needICMPv6
	needND
	needNDSolicit
	needNDAdvert
	// needPorts means TCP, UDP or SCTP, for mod_tp_src and mod_tp_dst.
	needPorts
	needMPLS
	needPBB
	// needCT means IP and a ct_state of a valid connection.
	needCT
	needCTIPv4
	needCTIPv6
)

var prereqTexts = [...]string{
	needVLAN: "a VLAN tag (vlan_tci=0x1000/0x1000)", needARP: "arp or rarp", needIPv4: "ip", needIPv6: "ipv6",
	needIP: "ip or ipv6", needTCP: "tcp or tcp6", needUDP: "udp or udp6", needSCTP: "sctp or sctp6", needICMP: "icmp",
	needICMPv6: "icmp6", needND: "icmp6 with icmp_type 135 or 136", needNDSolicit: "icmp6 with icmp_type=135",
	needNDAdvert: "icmp6 with icmp_type=136", needPorts: "tcp, udp or sctp", needMPLS: "mpls or mplsm",
	needPBB:    "dl_type=0x88e7",
	needCT:     "ip or ipv6 and a valid ct_state such as +trk-inv or +est",
	needCTIPv4: "ip and a valid ct_state such as +trk-inv or +est", needCTIPv6: "ipv6 and a valid ct_state such as +trk-inv or +est",
}

// Prober reads the bits that decide whether a prerequisite is met. The bits come from a
// match or from a frame in translation. A match knows only the bits in its mask. A
// translation records the bits that are read.
type Prober interface {
	// Probe returns the bits of mask in Flow[word], and whether all of them are
	// known.
	Probe(word int, mask uint64) (v uint64, known bool)
}

func (m *Match) Probe(word int, mask uint64) (uint64, bool) {
	return m.Value[word] & mask, m.Mask[word]&mask == mask
}

// met reports whether q meets p.
func (p prereq) met(q Prober) bool {
	switch p {
	case needNothing:
		return true
	case needVLAN:
		v, known := q.Probe(flowtable.WEthSrc, flowtable.VLANPresent)
		return known && v != 0
	}
	eth, known := q.Probe(flowtable.WEthDst, 0xffff)
	if !known {
		return false
	}
	ip4, ip6 := eth == packet.EtherTypeIPv4, eth == packet.EtherTypeIPv6
	switch p {
	case needMPLS:
		return eth == packet.EtherTypeMPLS || eth == packet.EtherTypeMPLSMulticast
	case needPBB:
		return eth == packet.EtherTypePBB
	case needARP:
		return eth == packet.EtherTypeARP || eth == packet.EtherTypeRARP
	case needIPv4:
		return ip4
	case needIPv6:
		return ip6
	case needIP:
		return ip4 || ip6
	case needCT:
		return (ip4 || ip6) && ctMet(q)
	case needCTIPv4:
		return ip4 && ctMet(q)
	case needCTIPv6:
		return ip6 && ctMet(q)
	case needICMP:
		return ip4 && hasProto(q, packet.ProtoICMP) && notLater(q)
	case needICMPv6, needND, needNDSolicit, needNDAdvert:
		return ip6 && hasProto(q, packet.ProtoICMPv6) && notLater(q) && p.icmpTypeMet(q)
	}
	return (ip4 || ip6) && p.transportMet(q)
}

func (p prereq) transportMet(q Prober) bool {
	proto, known := q.Probe(flowtable.WIP, 0xff<<flowtable.ProtoShift)
	if !known || !notLater(q) {
		return false
	}
	switch proto >> flowtable.ProtoShift {
	case packet.ProtoTCP:
		return p == needTCP || p == needPorts
	case packet.ProtoUDP:
		return p == needUDP || p == needPorts
	case packet.ProtoSCTP:
		return p == needSCTP || p == needPorts
	}
	return false
}

func (p prereq) icmpTypeMet(q Prober) bool {
	if p == needICMPv6 {
		return true
	}
	if code, _ := q.Probe(flowtable.WL4, 0xff<<flowtable.TPDstShift); code != 0 {
		return false // no message of neighbour discovery (RFC 4861, 4.3)
	}
	typ, known := q.Probe(flowtable.WL4, 0xff<<flowtable.TPSrcShift)
	solicit, advert := typ>>flowtable.TPSrcShift == packet.NDSolicitation, typ>>flowtable.TPSrcShift == packet.NDAdvertisement
	return known && (solicit && p != needNDAdvert || advert && p != needNDSolicit)
}

func hasProto(q Prober, proto uint64) bool {
	v, known := q.Probe(flowtable.WIP, 0xff<<flowtable.ProtoShift)
	return known && v>>flowtable.ProtoShift == proto
}

// notLater reports whether the frame is not a later fragment. Only then can it have a
// transport header.
func notLater(q Prober) bool {
	v, _ := q.Probe(flowtable.WIP, flowtable.FragLater<<flowtable.FragShift)
	return v == 0
}
