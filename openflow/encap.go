// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"

	"weft/flowtable"
	"weft/packet"
)

// The actions encap and decap (ovs-actions(7), "Encapsulation Actions"). They change the
// packet type: decap() of an Ethernet frame leaves a packet that begins with the header
// behind Ethernet, and encap(mpls) puts a label stack entry in front of everything. Only
// encap(ethernet) makes such a packet a frame again. In the data path every frame keeps an
// Ethernet header; xlate.bare is true while the packet of the tables has none.

// Packet types: a namespace in the upper, a type in the lower 16 bits (OpenFlow 1.5,
// 7.2.3.11).
const (
	packetEthernet = 0
	packetNext     = 0xfffe // decap(): the type that the removed header names
	etherTypeSpace = 1      // namespace of EtherTypes
	packetMPLS     = etherTypeSpace<<16 | packet.EtherTypeMPLS
	packetMPLSMC   = etherTypeSpace<<16 | packet.EtherTypeMPLSMulticast
)

// encapsulate executes encap.
func (x *xlate) encapsulate(packetType uint32) {
	switch {
	case packetType != packetEthernet && x.bare:
		x.pushMPLS(uint16(packetType))
	case packetType != packetEthernet:
		x.pushMPLSAndEthernet(uint16(packetType))
	case x.bare:
		x.bare = false
		x.set(wholeField(FEthDst), Value128{}, ones(48))
		x.set(wholeField(FEthSrc), Value128{}, ones(48))
	default:
		x.halt(packet.DropPacketType)
	}
}

// pushMPLSAndEthernet puts a label stack entry in front of an Ethernet frame. The data
// path adds the Ethernet header in front of it, too.
func (x *xlate) pushMPLSAndEthernet(etherType uint16) {
	entry := x.firstEntry()
	x.commit()
	x.emit(flowtable.Action{Op: flowtable.OpEncapMPLS, U16: etherType, U32: entry})
	x.hideInner(etherType, entry)
	x.hideTags()
	for _, word := range []int{flowtable.WEthDst, flowtable.WEthSrc} {
		const address = 0xffffffffffff << 16
		x.flow[word] &^= address
		x.base[word] &^= address
		x.keep[word] &^= address
		x.baseKeep[word] &^= address
	}
	x.bare = true
}

// decapsulate executes decap.
func (x *xlate) decapsulate(next uint32) {
	switch {
	case !x.bare && x.tagged():
		x.note("decap of a frame with a VLAN tag")
		x.halt(packet.DropPacketType)
	case !x.bare:
		x.bare = true
	case !needMPLS.met(x):
		x.note("decap of a packet that is no MPLS")
		x.halt(packet.DropPacketType)
	case next == packetEthernet:
		x.commit()
		x.emit(flowtable.Action{Op: flowtable.OpDecapMPLS})
		x.hideInner(etherTypeUnrevealed, 0)
		x.hideTags()
		x.bare, x.opaque = false, true
	case next>>16 == etherTypeSpace:
		x.popMPLS(uint16(next))
	default:
		x.note("MPLS does not say what follows")
		x.halt(packet.DropPacketType)
	}
}

// sendable reports whether the frame can be sent: it has an Ethernet header.
func (x *xlate) sendable() bool {
	if x.bare {
		x.noteDrop(packet.DropPacketType)
		x.note("a packet without an Ethernet header is not sent")
	}
	return !x.bare
}

// Parsing

var encapWords = map[string]uint32{"ethernet": packetEthernet, "mpls": packetMPLS, "mpls_mc": packetMPLSMC}

func (p *actionParser) encap(t token) (Action, error) {
	packetType, ok := encapWords[t.value]
	if !ok {
		return Action{}, wrong(t.text, "encap(ethernet), encap(mpls) or encap(mpls_mc), which weft supports")
	}
	return p.encapOf(packetType), nil
}

func (p *actionParser) encapOf(packetType uint32) Action {
	p.strict = true
	if p.bare = packetType != packetEthernet; p.bare {
		p.assumeType(uint64(uint16(packetType)))
	}
	return Action{Kind: ActEncap, Value: value64(uint64(packetType))}
}

func (p *actionParser) decap(t token) (Action, error) {
	if t.value == "" {
		return p.decapOf(packetNext), nil
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
	return p.decapOf(uint32(parts["ns"]<<16 | parts["type"])), nil
}

// decapOf returns a decap. Behind a decap of Ethernet, the parser still knows the EtherType.
// Behind a decap of MPLS it does not.
func (p *actionParser) decapOf(next uint32) Action {
	p.strict = true
	if p.bare {
		p.assumeType(0xffff)
	}
	p.bare = true
	return Action{Kind: ActDecap, Value: value64(uint64(next))}
}

func formatEncap(a *Action) string {
	next := uint32(a.Value[1])
	switch {
	case a.Kind == ActDecap && next == packetNext:
		return "decap()"
	case a.Kind == ActDecap && uint16(next) == 0:
		return fmt.Sprintf("decap(packet_type(ns=%d,type=0))", next>>16)
	case a.Kind == ActDecap:
		return fmt.Sprintf("decap(packet_type(ns=%d,type=0x%x))", next>>16, uint16(next))
	}
	for name, packetType := range encapWords {
		if packetType == next {
			return "encap(" + name + ")"
		}
	}
	return fmt.Sprintf("encap(0x%x)", next)
}

// On the wire

// appendEncap appends encap or decap, which OpenFlow 1.0 does not have.
func (e *actionEncoder) appendEncap(b []byte, a *Action) []byte {
	if e.v == Version10 {
		return b
	}
	subtype := uint16(nxEncap)
	if a.Kind == ActDecap {
		subtype = nxDecap
	}
	return be.AppendUint32(appendZeros(appendNX(b, subtype), 2), uint32(a.Value[1]))
}

func (d *actionDecoder) decodeEncap(subtype uint16, b []byte) (Action, error) {
	packetType := be.Uint32(b[2:])
	switch {
	case d.v == Version10:
		return Action{}, coded(ErrActionBadExpType, "encap and decap: expected OpenFlow 1.3 or later")
	case subtype == nxDecap:
		return d.check.decapOf(packetType), nil
	case packetType != packetEthernet && packetType != packetMPLS && packetType != packetMPLSMC:
		return Action{}, coded(ErrActionBadArgument, fmt.Sprintf("encap: packet type %#x: expected Ethernet or MPLS", packetType))
	case len(b) > 6:
		return Action{}, coded(ErrActionBadArgument, "encap: expected no properties")
	}
	return d.check.encapOf(packetType), nil
}
