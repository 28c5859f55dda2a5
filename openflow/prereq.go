// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"weft/flowtable"
	"weft/packet"
)

// Prereq is a field's prerequisite (ovs-fields(7)): the protocol, or the state of the connection, that a
// frame must have so that it has the field. A match on the field must also match on the prerequisite. An
// action changes the field only in frames that meet it.
type Prereq uint8

// Prerequisites of fields.
const (
	NeedNothing Prereq = iota
	NeedVLAN
	NeedARP
	NeedIPv4
	NeedIPv6
	NeedIP
	NeedTCP
	NeedUDP
	NeedSCTP
	NeedICMP
	NeedICMPv6
	NeedND
	NeedNDSolicit
	NeedNDAdvert
	// NeedPorts means TCP, UDP or SCTP. It is the prerequisite of mod_tp_src and mod_tp_dst.
	NeedPorts
	NeedMPLS
	NeedPBB
	NeedNSH
	// NeedCT means an IP frame whose ct_state is that of a valid connection.
	NeedCT
	NeedCTIPv4
	NeedCTIPv6
)

var prereqTexts = [...]string{
	NeedVLAN: "a VLAN tag (vlan_tci=0x1000/0x1000)", NeedARP: "arp or rarp", NeedIPv4: "ip", NeedIPv6: "ipv6",
	NeedIP: "ip or ipv6", NeedTCP: "tcp or tcp6", NeedUDP: "udp or udp6", NeedSCTP: "sctp or sctp6", NeedICMP: "icmp",
	NeedICMPv6: "icmp6", NeedND: "icmp6 with icmp_type 135 or 136", NeedNDSolicit: "icmp6 with icmp_type=135",
	NeedNDAdvert: "icmp6 with icmp_type=136", NeedPorts: "tcp, udp or sctp", NeedMPLS: "mpls or mplsm",
	NeedPBB: "dl_type=0x88e7", NeedNSH: "dl_type=0x894f",
	NeedCT:     "ip or ipv6 and a valid ct_state such as +trk-inv or +est",
	NeedCTIPv4: "ip and a valid ct_state such as +trk-inv or +est", NeedCTIPv6: "ipv6 and a valid ct_state such as +trk-inv or +est",
}

// Prober gives Prereq.Met the bits that decide whether a prerequisite is met. It is a Match or a frame in
// translation. A Match has only the bits in its mask. The translation has all bits of the frame; it records
// which bits Met has read, because the megaflow must match on them.
type Prober interface {
	// Probe returns the bits of "mask" in Flow[word]. known is false if the Prober does not have all of them.
	Probe(word int, mask uint64) (v uint64, known bool)
}

// Probe implements Prober. The known bits are those that the match compares.
func (m *Match) Probe(word int, mask uint64) (uint64, bool) {
	return m.Value[word] & mask, m.Mask[word]&mask == mask
}

// Met reports whether q meets the prerequisite p. It returns false if the known bits of q do not decide.
func (p Prereq) Met(q Prober) bool {
	switch p {
	case NeedNothing:
		return true
	case NeedVLAN:
		v, known := q.Probe(flowtable.WEthSrc, flowtable.VLANPresent)
		return known && v != 0
	}
	eth, known := q.Probe(flowtable.WEthDst, 0xffff)
	if !known {
		return false
	}
	ip4, ip6 := eth == packet.EtherTypeIPv4, eth == packet.EtherTypeIPv6
	switch p {
	case NeedMPLS:
		return eth == packet.EtherTypeMPLS || eth == packet.EtherTypeMPLSMulticast
	case NeedPBB:
		return eth == packet.EtherTypePBB
	case NeedNSH:
		return eth == packet.EtherTypeNSH
	case NeedARP:
		return eth == packet.EtherTypeARP || eth == packet.EtherTypeRARP
	case NeedIPv4:
		return ip4
	case NeedIPv6:
		return ip6
	case NeedIP:
		return ip4 || ip6
	case NeedCT:
		return (ip4 || ip6) && ctMet(q)
	case NeedCTIPv4:
		return ip4 && ctMet(q)
	case NeedCTIPv6:
		return ip6 && ctMet(q)
	case NeedICMP:
		return ip4 && hasProto(q, packet.ProtoICMP) && notLater(q)
	case NeedICMPv6, NeedND, NeedNDSolicit, NeedNDAdvert:
		return ip6 && hasProto(q, packet.ProtoICMPv6) && notLater(q) && p.icmpTypeMet(q)
	}
	return (ip4 || ip6) && p.transportMet(q)
}

func (p Prereq) transportMet(q Prober) bool {
	proto, known := q.Probe(flowtable.WIP, 0xff<<flowtable.ProtoShift)
	if !known || !notLater(q) {
		return false
	}
	switch proto >> flowtable.ProtoShift {
	case packet.ProtoTCP:
		return p == NeedTCP || p == NeedPorts
	case packet.ProtoUDP:
		return p == NeedUDP || p == NeedPorts
	case packet.ProtoSCTP:
		return p == NeedSCTP || p == NeedPorts
	}
	return false
}

func (p Prereq) icmpTypeMet(q Prober) bool {
	if p == NeedICMPv6 {
		return true
	}
	if code, _ := q.Probe(flowtable.WL4, 0xff<<flowtable.TPDstShift); code != 0 {
		return false // messages of neighbour discovery have the code 0 (RFC 4861, 4.3)
	}
	typ, known := q.Probe(flowtable.WL4, 0xff<<flowtable.TPSrcShift)
	solicit, advert := typ>>flowtable.TPSrcShift == packet.NDSolicitation, typ>>flowtable.TPSrcShift == packet.NDAdvertisement
	return known && (solicit && p != NeedNDAdvert || advert && p != NeedNDSolicit)
}

func hasProto(q Prober, proto uint64) bool {
	v, known := q.Probe(flowtable.WIP, 0xff<<flowtable.ProtoShift)
	return known && v>>flowtable.ProtoShift == proto
}

// notLater returns false if the frame is known to be a later fragment, which has no transport header.
func notLater(q Prober) bool {
	v, _ := q.Probe(flowtable.WIP, flowtable.FragLater<<flowtable.FragShift)
	return v == 0
}
