// SPDX-License-Identifier: Apache-2.0

package flowexport

import (
	"encoding/binary"
	"time"

	"weft/flowtable"
	"weft/packet"
)

// This file writes messages of IPFIX (RFC 7011). The information elements are those of Open vSwitch:
// from IANA's registry, and a few of VMware for tunnels.

var be = binary.BigEndian

const (
	ipfixVersion     = 10
	templateSet      = 2
	firstTemplate    = 256
	variableLength   = 65535
	enterpriseBit    = 1 << 15
	enterpriseVMware = 6876
	// maxMessage is the length in bytes up to which a message gets more records. It fits into an
	// Ethernet frame.
	maxMessage = 1400
)

// shape says which information elements a record has. Each shape has its own template.
type shape uint16

const (
	shapeEgress shape = 1 << iota
	shapeVLAN
	shapeIPv4
	shapeIPv6
	shapePorts // TCP, UDP or SCTP
	shapeICMPv4
	shapeICMPv6
	shapeTCP
	shapeTunnel
	shapeVirtual // the exporter's option virtual_obs_id is set

	shapeAny shape = 0
	shapeIP        = shapeIPv4 | shapeIPv6
)

func (s shape) template() uint16 { return firstTemplate + uint16(s) }

// element is an information element (RFC 7011 section 2): one field of a record.
type element struct {
	id         uint16
	enterprise uint32 // enterprise number; 0: IANA's registry
	size       uint16 // in bytes, or variableLength
	shapes     shape  // a record has the element if its shape has one of these bits; shapeAny: every record has it
	put        func(b []byte, r *record) []byte
}

// within reports whether the records of this shape have the element.
func (e *element) within(form shape) bool { return e.shapes == shapeAny || e.shapes&form != 0 }

// record has the values that are written into one IPFIX record: the first fields for the elements of the
// flow key, the others for the elements with counts.
type record struct {
	sample  *Sample
	key     *flowtable.Key // key of the frame when it was sampled
	in, out Interface
	tunnel  uint8 // VMware's number of the tunnel type

	flow     *flow
	totals   *totals
	virtual  string
	exportUS uint64 // time in the message's header, in microseconds since 1970, a whole second
	reason   uint8  // a value of flowEndReason
}

// Values of the element flowEndReason (RFC 5102 section 5.11.3).
const (
	endActive    = 2
	endForced    = 4
	endResources = 5
)

func u8(get func(r *record) uint8) func([]byte, *record) []byte {
	return func(b []byte, r *record) []byte { return append(b, get(r)) }
}

func u16(get func(r *record) uint16) func([]byte, *record) []byte {
	return func(b []byte, r *record) []byte { return be.AppendUint16(b, get(r)) }
}

func u32(get func(r *record) uint32) func([]byte, *record) []byte {
	return func(b []byte, r *record) []byte { return be.AppendUint32(b, get(r)) }
}

func u64(get func(r *record) uint64) func([]byte, *record) []byte {
	return func(b []byte, r *record) []byte { return be.AppendUint64(b, get(r)) }
}

func mac(get func(r *record) uint64) func([]byte, *record) []byte {
	return func(b []byte, r *record) []byte {
		v := get(r)
		return be.AppendUint32(be.AppendUint16(b, uint16(v>>32)), uint32(v))
	}
}

// text returns a function that writes an element of variable length (RFC 7011 section 7). Longer texts
// than 254 bytes, which need another form of length, are cut.
func text(get func(r *record) string) func([]byte, *record) []byte {
	return func(b []byte, r *record) []byte {
		s := get(r)
		s = s[:min(len(s), 254)]
		return append(append(b, uint8(len(s))), s...)
	}
}

func words(word int) func([]byte, *record) []byte {
	return func(b []byte, r *record) []byte {
		return be.AppendUint64(be.AppendUint64(b, r.key[word]), r.key[word+1])
	}
}

// keyElements are the elements of a flow's key, in the order of Open vSwitch.
var keyElements = []element{
	{138, 0, 4, shapeAny, u32(func(r *record) uint32 { return r.sample.Point })}, // observationPointId
	{61, 0, 1, shapeAny, u8(func(r *record) uint8 { // flowDirection
		if r.sample.Egress {
			return 1
		}
		return 0
	})},
	{56, 0, 6, shapeAny, mac(func(r *record) uint64 { return r.key.EthSrc() })},
	{80, 0, 6, shapeAny, mac(func(r *record) uint64 { return r.key.EthDst() })},
	{256, 0, 2, shapeAny, u16(func(r *record) uint16 { return r.key.EtherType() })},
	{240, 0, 1, shapeAny, u8(func(r *record) uint8 { return uint8(etherLen(r.key)) })}, // ethernetHeaderLength
	{10, 0, 4, shapeAny, u32(func(r *record) uint32 { return r.in.Index })},            // ingressInterface
	{368, 0, 4, shapeAny, u32(func(r *record) uint32 { return r.in.kind() })},
	{82, 0, variableLength, shapeAny, text(func(r *record) string { return r.in.Name })},
	{83, 0, variableLength, shapeAny, text(func(r *record) string { return r.in.Type })},
	{14, 0, 4, shapeEgress, u32(func(r *record) uint32 { return r.out.Index })}, // egressInterface
	{369, 0, 4, shapeEgress, u32(func(r *record) uint32 { return r.out.kind() })},
	{82, 0, variableLength, shapeEgress, text(func(r *record) string { return r.out.Name })},
	{83, 0, variableLength, shapeEgress, text(func(r *record) string { return r.out.Type })},
	{58, 0, 2, shapeVLAN, u16(func(r *record) uint16 { return r.key.OuterTCI() & flowtable.VLANID })},              // vlanId
	{243, 0, 2, shapeVLAN, u16(func(r *record) uint16 { return r.key.OuterTCI() & flowtable.VLANID })},             // dot1qVlanId
	{244, 0, 1, shapeVLAN, u8(func(r *record) uint8 { return uint8(r.key.OuterTCI() & flowtable.VLANPCP >> 13) })}, // dot1qPriority
	{60, 0, 1, shapeIP, u8(func(r *record) uint8 { // ipVersion
		if r.key.EtherType() == packet.EtherTypeIPv4 {
			return 4
		}
		return 6
	})},
	{192, 0, 1, shapeIP, u8(func(r *record) uint8 { return r.key.TTL() })},
	{4, 0, 1, shapeIP, u8(func(r *record) uint8 { return r.key.Proto() })},
	{195, 0, 1, shapeIP, u8(func(r *record) uint8 { return r.key.TOS() >> 2 })}, // ipDiffServCodePoint
	{196, 0, 1, shapeIP, u8(func(r *record) uint8 { return r.key.TOS() >> 5 })}, // ipPrecedence
	{5, 0, 1, shapeIP, u8(func(r *record) uint8 { return r.key.TOS() })},
	{8, 0, 4, shapeIPv4, u32(func(r *record) uint32 { return r.key.IPv4Src() })},
	{12, 0, 4, shapeIPv4, u32(func(r *record) uint32 { return r.key.IPv4Dst() })},
	{27, 0, 16, shapeIPv6, words(flowtable.WIPv6Src)},
	{28, 0, 16, shapeIPv6, words(flowtable.WIPv6Dst)},
	{31, 0, 4, shapeIPv6, u32(func(r *record) uint32 { return uint32(r.key[flowtable.WL4]) & 0xfffff })}, // flowLabelIPv6
	{7, 0, 2, shapePorts, u16(func(r *record) uint16 { return uint16(r.key[flowtable.WL4] >> flowtable.TPSrcShift) })},
	{11, 0, 2, shapePorts, u16(func(r *record) uint16 { return uint16(r.key[flowtable.WL4] >> flowtable.TPDstShift) })},
	{176, 0, 1, shapeICMPv4, u8(icmpType)},
	{177, 0, 1, shapeICMPv4, u8(icmpCode)},
	{178, 0, 1, shapeICMPv6, u8(icmpType)},
	{179, 0, 1, shapeICMPv6, u8(icmpCode)},
	{893, enterpriseVMware, 4, shapeTunnel, u32(func(r *record) uint32 { return uint32(r.sample.Key[flowtable.WTunIPv4] >> 32) })}, // tunnelSourceIPv4Address
	{894, enterpriseVMware, 4, shapeTunnel, u32(func(r *record) uint32 { return uint32(r.sample.Key[flowtable.WTunIPv4]) })},
	{895, enterpriseVMware, 1, shapeTunnel, u8(func(r *record) uint8 { return r.in.tunnelProtocol() })},
	{896, enterpriseVMware, 2, shapeTunnel, u16(func(*record) uint16 { return 0 })}, // tunnelSourceTransportPort: not kept
	{897, enterpriseVMware, 2, shapeTunnel, u16(func(r *record) uint16 { return r.in.TunnelPort })},
	{891, enterpriseVMware, 1, shapeTunnel, u8(func(r *record) uint8 { return r.tunnel })},
	{892, enterpriseVMware, variableLength, shapeTunnel, func(b []byte, r *record) []byte { // tunnelKey
		return append(append(b, 3), be.AppendUint32(nil, uint32(r.sample.Key[flowtable.WTunID]))[1:]...)
	}},
}

// virtualElement is not among keyElements, because all flows of an exporter have the same value.
var virtualElement = element{898, enterpriseVMware, variableLength, shapeVirtual, text(func(r *record) string { return r.virtual })}

// countElements are the elements with the counts of a flow and the totals of its exporter.
var countElements = []element{
	{158, 0, 4, shapeAny, u32(func(r *record) uint32 { return uint32(r.exportUS - r.flow.firstUS) })}, // flowStartDeltaMicroseconds
	{159, 0, 4, shapeAny, u32(func(r *record) uint32 { return uint32(r.exportUS - r.flow.lastUS) })},
	{133, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.flow.dropped.packets })}, // droppedPacketDeltaCount
	{135, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.totals.dropped.packets })},
	{2, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.flow.ip.packets })}, // packetDeltaCount
	{86, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.totals.ip.packets })},
	{354, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.totals.cast[0][unicast] })}, // ingressUnicastPacketTotalCount
	{355, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.totals.cast[0][multicast] })},
	{356, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.totals.cast[0][broadcast] })},
	{357, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.totals.cast[1][unicast] })}, // egressUnicastPacketTotalCount
	{358, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.totals.cast[1][broadcast] })},
	{19, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.flow.postMulticast.packets })}, // postMCastPacketDeltaCount
	{174, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.totals.postMulticast.packets })},
	{352, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.flow.frameBytes })}, // layer2OctetDeltaCount
	{353, 0, 8, shapeAny, u64(func(r *record) uint64 { return r.totals.frameBytes })},
	{136, 0, 1, shapeAny, u8(func(r *record) uint8 { return r.reason })},
	{132, 0, 8, shapeIP, u64(func(r *record) uint64 { return r.flow.dropped.bytes })}, // droppedOctetDeltaCount
	{134, 0, 8, shapeIP, u64(func(r *record) uint64 { return r.totals.dropped.bytes })},
	{1, 0, 8, shapeIP, u64(func(r *record) uint64 { return r.flow.ip.bytes })}, // octetDeltaCount
	{85, 0, 8, shapeIP, u64(func(r *record) uint64 { return r.totals.ip.bytes })},
	{198, 0, 8, shapeIP, u64(func(r *record) uint64 { return r.flow.squares })}, // octetDeltaSumOfSquares
	{199, 0, 8, shapeIP, u64(func(r *record) uint64 { return r.totals.squares })},
	{25, 0, 8, shapeIP, u64(func(r *record) uint64 { return r.flow.shortest })}, // minimumIpTotalLength
	{26, 0, 8, shapeIP, u64(func(r *record) uint64 { return r.flow.longest })},
	{20, 0, 8, shapeIP, u64(func(r *record) uint64 { return r.flow.postMulticast.bytes })}, // postMCastOctetDeltaCount
	{175, 0, 8, shapeIP, u64(func(r *record) uint64 { return r.totals.postMulticast.bytes })},
	{222, 0, 8, shapeTCP, tcpTotal(4)}, // tcpAckTotalCount
	{219, 0, 8, shapeTCP, tcpTotal(0)}, // tcpFinTotalCount
	{221, 0, 8, shapeTCP, tcpTotal(3)}, // tcpPshTotalCount
	{220, 0, 8, shapeTCP, tcpTotal(2)}, // tcpRstTotalCount
	{218, 0, 8, shapeTCP, tcpTotal(1)}, // tcpSynTotalCount
	{223, 0, 8, shapeTCP, tcpTotal(5)}, // tcpUrgTotalCount
}

// tcpTotal returns a function that writes the number of packets with a TCP flag. bit is the flag's bit
// in the header.
func tcpTotal(bit int) func([]byte, *record) []byte {
	return u64(func(r *record) uint64 { return r.totals.tcp[bit] })
}

func icmpType(r *record) uint8 { return r.key.ICMPType() }
func icmpCode(r *record) uint8 { return uint8(r.key[flowtable.WL4] >> flowtable.TPDstShift) }

// etherLen returns the length in bytes of the Ethernet header, with at most one VLAN tag, as Open
// vSwitch counts it.
func etherLen(k *flowtable.Key) int {
	if k.OuterTCI()&flowtable.VLANPresent != 0 {
		return 18
	}
	return 14
}

// shapeOf returns the shape of the record for a sample whose frame has key k.
func shapeOf(s *Sample, k *flowtable.Key, tunnels bool, virtual string) (form shape) {
	if s.Egress {
		form |= shapeEgress
	}
	if k.OuterTCI()&flowtable.VLANPresent != 0 {
		form |= shapeVLAN
	}
	if virtual != "" {
		form |= shapeVirtual
	}
	if tunnels && !s.Egress && s.Key[flowtable.WTunIPv4] != 0 {
		form |= shapeTunnel
	}
	icmp := uint8(packet.ProtoICMP)
	switch k.EtherType() {
	case packet.EtherTypeIPv4:
		form |= shapeIPv4
	case packet.EtherTypeIPv6:
		form |= shapeIPv6
		icmp = packet.ProtoICMPv6
	default:
		return form
	}
	switch k.Proto() {
	case packet.ProtoTCP:
		form |= shapePorts | shapeTCP
	case packet.ProtoUDP, packet.ProtoSCTP:
		form |= shapePorts
	case icmp:
		form |= shapeICMPv4
		if form&shapeIPv6 != 0 {
			form ^= shapeICMPv4 | shapeICMPv6
		}
	}
	return form
}

// eachElement calls fn for each element of a shape, in the order of the record.
func eachElement(form shape, fn func(e *element)) {
	visit := func(list []element) {
		for i := range list {
			if e := &list[i]; e.within(form) {
				fn(e)
			}
		}
	}
	visit(keyElements)
	visit([]element{virtualElement})
	visit(countElements)
}

// keyOf returns the key elements of a record. Their bytes identify the flow.
func keyOf(form shape, r *record) []byte {
	var b []byte
	for i := range keyElements {
		if e := &keyElements[i]; e.within(form) {
			b = e.put(b, r)
		}
	}
	return b
}

// appendTemplate appends a template set with the template of a shape (RFC 7011 section 3.4.1).
func appendTemplate(b []byte, form shape) []byte {
	start := len(b)
	b = be.AppendUint16(be.AppendUint16(be.AppendUint32(b, templateSet<<16), form.template()), 0)
	count := uint16(0)
	eachElement(form, func(e *element) {
		count++
		if e.enterprise == 0 {
			b = be.AppendUint16(be.AppendUint16(b, e.id), e.size)
		} else {
			b = be.AppendUint32(be.AppendUint16(be.AppendUint16(b, e.id|enterpriseBit), e.size), e.enterprise)
		}
	})
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	be.PutUint16(b[start+6:], count)
	return b
}

// appendRecord appends a data set with one record.
func appendRecord(b []byte, form shape, r *record) []byte {
	start := len(b)
	b = append(be.AppendUint16(be.AppendUint16(b, form.template()), 0), r.flow.key...)
	if form&shapeVirtual != 0 {
		b = virtualElement.put(b, r)
	}
	for i := range countElements {
		if e := &countElements[i]; e.within(form) {
			b = e.put(b, r)
		}
	}
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}

// beginMessage returns the header of a message. endMessage sets its length.
func beginMessage(domain, sequence uint32, exportUS uint64) []byte {
	b := be.AppendUint16(make([]byte, 0, maxMessage), ipfixVersion)
	b = be.AppendUint32(be.AppendUint16(b, 0), uint32(exportUS/1e6))
	return be.AppendUint32(be.AppendUint32(b, sequence), domain)
}

func endMessage(b []byte) []byte {
	be.PutUint16(b[2:], uint16(len(b)))
	return b
}

// exportTime returns the end of the second in which t lies, in microseconds since 1970. Records give
// times as distances before the export time, which must not be negative.
func exportTime(t time.Time) uint64 { return uint64(t.Unix()+1) * 1e6 }
