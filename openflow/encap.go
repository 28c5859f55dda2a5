// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"

	"weft/packet"
)

// Subtypes of Nicira's actions for encap and decap.
const (
	nxEncap = 46
	nxDecap = 47
)

func init() {
	addAction(ActEncap, actionRow{words: map[string]actionParse{"encap": (*actionParser).encap}, format: formatEncap, rank: rankEncap,
		encode: (*actionEncoder).appendEncap, nicira: map[uint16]niciraRow{nxEncap: {6, (*actionDecoder).decodeEncap}}})
	addAction(ActDecap, actionRow{words: map[string]actionParse{"decap": (*actionParser).decap}, format: formatEncap, rank: rankDecap,
		encode: (*actionEncoder).appendEncap, nicira: map[uint16]niciraRow{nxDecap: {6, (*actionDecoder).decodeEncap}}})
}

// This file has the actions encap and decap (ovs-actions(7), "Encapsulation Actions"). They change the
// packet type. decap() of an Ethernet frame leaves a packet that begins with the header behind the Ethernet
// header. encap(mpls) puts a label stack entry in front of the packet. Only encap(ethernet) makes such a
// packet an Ethernet frame again. The data path does not remove the Ethernet header. Package xlate hides it
// from the flow tables and from later actions.

// Packet types: a namespace in the upper, a type in the lower 16 bits (OpenFlow 1.5,
// 7.2.3.11).
const (
	PacketEthernet = 0
	PacketNext     = 0xfffe // argument of decap(): the removed header names the packet type behind it
	EtherTypeSpace = 1      // namespace of EtherTypes
	packetMPLS     = EtherTypeSpace<<16 | packet.EtherTypeMPLS
	packetMPLSMC   = EtherTypeSpace<<16 | packet.EtherTypeMPLSMulticast
	PacketNSH      = EtherTypeSpace<<16 | packet.EtherTypeNSH
)

var encapWords = map[string]uint32{"ethernet": PacketEthernet, "mpls": packetMPLS, "mpls_mc": packetMPLSMC}

func (p *actionParser) encap(t token) (Action, error) {
	packetType, ok := encapWords[t.value]
	mdType, isNSH := nshWords[t.value]
	switch {
	case isNSH:
		return p.check.encap(PacketNSH, mdType), nil
	case !ok:
		return Action{}, wrong(t.text, "encap(ethernet), encap(mpls), encap(mpls_mc) or encap(nsh), perhaps with md_type, which weft supports")
	}
	return p.check.encap(packetType, 0), nil
}

func (p *actionParser) decap(t token) (Action, error) {
	if t.value == "" {
		return p.check.decap(PacketNext), nil
	}
	const expected = "decap() or decap(packet_type(ns=NUMBER,type=NUMBER))"
	outer, rest, ok := nextToken(t.value)
	if !ok || outer.key != "packet_type" || rest != "" {
		return Action{}, wrong(t.text, expected)
	}
	parts := map[string]uint64{}
	for text := outer.value; ; {
		one, rest, more := nextToken(text)
		if !more {
			break
		}
		text = rest
		v, ok := parseUint(one.value, 0xffff)
		if !ok || one.key != "ns" && one.key != "type" {
			return Action{}, wrong(t.text, expected)
		}
		parts[one.key] = v
	}
	if len(parts) != 2 {
		return Action{}, wrong(t.text, expected)
	}
	return p.check.decap(uint32(parts["ns"]<<16 | parts["type"])), nil
}

func formatEncap(a *Action, _ Names) string {
	next := uint32(a.Value[1])
	switch {
	case a.Kind == ActDecap && next == PacketNext:
		return "decap()"
	case a.Kind == ActDecap && uint16(next) == 0:
		return fmt.Sprintf("decap(packet_type(ns=%d,type=0))", next>>16)
	case a.Kind == ActDecap:
		return fmt.Sprintf("decap(packet_type(ns=%d,type=0x%x))", next>>16, uint16(next))
	}
	for text, mdType := range nshWords {
		if next == PacketNSH && a.Value[0] == mdType {
			return "encap(" + text + ")"
		}
	}
	for name, packetType := range encapWords {
		if packetType == next {
			return "encap(" + name + ")"
		}
	}
	return fmt.Sprintf("encap(0x%x)", next)
}

// appendEncap appends an encap or decap action. It appends nothing for OpenFlow 1.0.
func (e *actionEncoder) appendEncap(b []byte, a *Action) []byte {
	if e.v == Version10 {
		return b
	}
	subtype := uint16(nxEncap)
	if a.Kind == ActDecap {
		subtype = nxDecap
	}
	b = be.AppendUint32(appendZeros(appendNX(b, subtype), 2), uint32(a.Value[1]))
	if a.Value[0] != 0 {
		b = append(be.AppendUint16(b, propertyNSH), propertyMDType, propertyMDTypeLen, byte(a.Value[0]), 0, 0, 0)
	}
	return b
}

func (d *actionDecoder) decodeEncap(subtype uint16, b []byte) (Action, error) {
	packetType := be.Uint32(b[2:])
	switch {
	case d.v == Version10:
		return Action{}, coded(ErrActionBadExpType, "encap and decap: expected OpenFlow 1.3 or later")
	case subtype == nxDecap:
		return d.check.decap(packetType), nil
	case packetType == PacketNSH:
		mdType, ok := decodeMDType(b[6:])
		if !ok {
			return Action{}, coded(ErrActionBadArgument, "encap(nsh): expected no property but md_type 1 or 2")
		}
		return d.check.encap(packetType, mdType), nil
	case packetType != PacketEthernet && packetType != packetMPLS && packetType != packetMPLSMC:
		return Action{}, coded(ErrActionBadArgument, fmt.Sprintf("encap: packet type %#x: expected Ethernet, MPLS or NSH", packetType))
	case len(b) > 6:
		return Action{}, coded(ErrActionBadArgument, "encap: expected no properties")
	}
	return d.check.encap(packetType, 0), nil
}
