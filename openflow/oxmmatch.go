// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"

	"weft/flowtable"
)

// oxmOrder lists the fields of a match in the order in which AppendMatch writes them.
// A field follows the fields that its prerequisite needs.
var oxmOrder = []FieldID{
	FEthDst, FEthSrc, FEthType, FARPOp, FIPProto, FIPFrag, FIPECN, FIPTTL, FIPSrc, FIPDst, FIPv6Src, FIPv6Dst, FIPv6Label, FIPv6ExtHdr,
	FARPSpa, FARPTpa, FTCPSrc, FTCPDst, FTCPFlags, FUDPSrc, FUDPDst, FSCTPSrc, FSCTPDst, FICMPType, FICMPCode,
	FICMPv6Type, FICMPv6Code, FNDTarget, FNDSll, FNDTll, FNDReserved, FNDOptType, FARPSha, FARPTha, FMPLSLabel, FMPLSTC, FMPLSBOS, FMPLSTTL, FPBBISID,
	FNSHFlags, FNSHTTL, FNSHMDType, FNSHNP, FNSHSPI, FNSHSI, FNSHC1, FNSHC2, FNSHC3, FNSHC4, FTunID, FTunSrc, FTunDst, FTunIPv6Src,
	FTunIPv6Dst, FTunGBPID, FTunGBPFlags, FTunFlags, FMetadata, FPktMark, FConjID, FReg, FReg + 1, FReg + 2, FReg + 3, FReg + 4, FReg + 5, FReg + 6, FReg + 7, FReg + 8, FReg + 9,
	FReg + 10, FReg + 11, FReg + 12, FReg + 13, FReg + 14, FReg + 15, FCTState, FCTZone, FCTMark, FCTLabel, FCTNwSrc, FCTNwDst,
	FCTIPv6Src, FCTIPv6Dst, FCTNwProto, FCTTpSrc, FCTTpDst,
}

// AppendMatch appends the encoded fields of a match: NXM for OpenFlow 1.0, OXM for later versions. The caller
// adds the match's header and padding. tlvs is the bridge's TLV map.
func AppendMatch(b []byte, m *Match, v Version, tlvs *TLVMap) []byte {
	if m.Mask == (Flow{}) {
		return b
	}
	if mask := m.Mask.Key().InPort(); mask != 0 {
		b = appendInPort(b, m.Value.Key().InPort(), v)
	}
	left := m.Mask
	for _, id := range oxmOrder {
		if b = appendField(b, m, &left, id, v); id == FEthType {
			b = appendVLAN(b, m, v)
		}
		if id == FIPProto {
			b = appendTOS(b, m, v)
		}
	}
	return tlvs.appendMatch(b, m)
}

func appendInPort(b []byte, number uint32, v Version) []byte {
	if v == Version10 {
		return AppendValue(FInPort.header(v).append(b, false), Value64(uint64(number)), 2)
	}
	return AppendValue(FInPortOXM.header(v).append(b, false), Value64(uint64(WirePort(number))), 4)
}

// appendField appends the field "id" if "unwritten" has bits of it. "unwritten" has the mask bits that are
// not yet encoded; appendField clears the field's bits in it.
func appendField(b []byte, m *Match, unwritten *Flow, id FieldID, v Version) []byte {
	f, s := &fields[id], WholeField(id)
	if unwritten[f.word] == 0 && (f.bits <= 64 || unwritten[f.word+1] == 0) {
		return b
	}
	mask := s.Get(unwritten)
	if mask.IsZero() || !f.prerequisite.Met(m) {
		return b
	}
	word, hi, lo := s.Mask()
	unwritten[word] &^= hi
	if f.bits > 64 {
		unwritten[word+1] &^= lo
	}
	width := Ones(uint(f.storedBits()))
	value := s.Get(&m.Value).And(mask)
	h := id.header(v)
	masked := mask.And(width) != width
	b = AppendValue(h.append(b, masked), value, h.length)
	if masked {
		b = AppendValue(b, mask, h.length)
	}
	return b
}

// appendVLAN appends the match on the outer VLAN tag. NXM has one field for the tag, vlan_tci. OXM has two:
// vlan_vid, which includes the bit OFPVID_PRESENT, and vlan_pcp.
func appendVLAN(b []byte, m *Match, v Version) []byte {
	value, mask := m.Value[flowtable.WEthSrc]&flowtable.VLANTCI, m.Mask[flowtable.WEthSrc]&flowtable.VLANTCI
	if mask == 0 {
		return b
	}
	put := func(id FieldID, v, mask, full uint64) {
		h := headersOf[id].nxm
		b = AppendValue(h.append(b, mask != full), Value64(v), h.length)
		if mask != full {
			b = AppendValue(b, Value64(mask), h.length)
		}
	}
	if v == Version10 {
		put(FVLANTCI, value, mask, flowtable.VLANTCI)
		return b
	}
	const vid = flowtable.VLANPresent | flowtable.VLANID
	if mask&vid != 0 {
		put(FVLANVID, value&vid, mask&vid, vid)
	}
	if value&flowtable.VLANPresent != 0 && mask&flowtable.VLANPCP != 0 {
		put(FVLANPCP, value>>13&7, 7, 7)
	}
	return b
}

func appendTOS(b []byte, m *Match, v Version) []byte {
	if m.Mask[flowtable.WIP]>>flowtable.TOSShift&tosDSCP == 0 || !NeedIP.Met(m) {
		return b
	}
	tos := m.Value[flowtable.WIP] >> flowtable.TOSShift & tosDSCP
	if v == Version10 {
		return append(headersOf[FNwTOS].nxm.append(b, false), byte(tos))
	}
	return append(headersOf[FIPDSCP].oxm.append(b, false), byte(tos>>2))
}

// DecodeMatch decodes the fields of a match from a controller. In any version, fields may have NXM or OXM
// headers. Errors are *CodedError.
func DecodeMatch(b []byte, tlvs *TLVMap) (m Match, err error) { return decodeMatch(b, tlvs, false) }

// DecodeMetadata decodes the match of a packet-out, whose fields are not in the frame's bytes, such as
// in_port and registers. It ignores fields with the value 0, even those that Weft does not support, because
// the controllers of Open vSwitch send all fields.
func DecodeMetadata(b []byte, tlvs *TLVMap) (m Match, err error) { return decodeMatch(b, tlvs, true) }

func decodeMatch(b []byte, tlvs *TLVMap, metadata bool) (m Match, err error) {
	var seen [fieldCount]bool
	for len(b) > 0 {
		e, rest, ok := readEntry(b)
		if !ok {
			return m, coded(ErrMatchBadLen, "a match ends within a field")
		}
		b = rest
		if metadata && e.zero {
			continue
		}
		if e.header == packetTypeHeader && !e.masked && e.zero {
			continue
		}
		if e.id.IsTLV() && !e.badLen {
			if err := e.requireTLV(&m, tlvs); err != nil {
				return m, err
			}
			continue
		}
		if err := e.check(&m, &seen); err != nil {
			return m, err
		}
		e.set(&m)
	}
	if err := checkCT(&m); err != nil {
		return m, coded(ErrMatchBadPrereq, err.Error())
	}
	return m, nil
}

// check returns an error if the field is not valid in the match: it is unknown, repeated, without its
// prerequisite, or has a wrong value or mask.
func (e *oxmEntry) check(m *Match, present *[fieldCount]bool) error {
	f := &fields[e.id]
	fail := func(code ErrorCode, problem string) error {
		return coded(code, fmt.Sprintf("field %#04x:%d %s: %s", e.header.class, e.header.number, f.name, problem))
	}
	switch {
	case e.badLen:
		return fail(ErrMatchBadLen, "a wrong length")
	case e.id == FNone:
		return fail(ErrMatchBadField, "expected a field that weft supports")
	case !f.prerequisite.Met(m) && e.id != FVLANVID: // vlan_vid itself has the bit that says whether there is a tag
		return fail(ErrMatchBadPrereq, "expected "+prereqTexts[f.prerequisite]+" before it")
	case present[e.id]:
		return fail(ErrMatchDupField, "expected it once")
	case !e.v.AndNot(e.mask).IsZero():
		return fail(ErrMatchBadWildcards, "a value with bits that its mask does not have")
	case e.masked && !f.maskable && !e.mask.IsZero() && e.mask != Ones(8*uint(f.bytes)):
		return fail(ErrMatchBadMask, "expected no mask")
	case !e.v.AndNot(Ones(e.validBits())).IsZero() || e.id == FNwTOS && e.v[1]&^tosDSCP != 0, !validNSH(e.id, e.v[1]):
		return fail(ErrMatchBadValue, "a value out of range")
	}
	present[e.id] = true
	return nil
}

// validBits returns the number of bits that a value of the field may have on the wire.
func (e *oxmEntry) validBits() uint {
	switch e.id {
	case FVLANVID:
		return 13 // 12 bits of the VLAN ID, and OFPVID_PRESENT
	case FInPortOXM:
		return 32
	}
	return uint(fields[e.id].storedBits())
}

// set adds the field to the match m.
func (e *oxmEntry) set(m *Match) {
	v, mask := e.v, e.mask
	switch e.id {
	case FInPortOXM:
		no, _ := PortFromWire(uint32(v[1]))
		v = Value64(uint64(no))
	case FIPDSCP:
		setField(m, FNwTOS, Value64(v[1]<<2), Value64(tosDSCP))
		return
	case FVLANVID:
		mask = mask.And(Ones(13))
	case FCTState:
		mask = mask.And(Ones(8))
	default:
		mask = mask.And(Ones(uint(fields[e.id].storedBits())))
	}
	setField(m, e.id, v, mask)
}

// InPortOf returns the in_port that the match of a packet-out has. If the match has none, it returns
// PortController (OpenFlow 1.5, 7.3.6).
func InPortOf(m *Match) uint32 {
	if m.Mask.Key().InPort() == 0 {
		return PortController
	}
	return m.Value.Key().InPort()
}

// SetInPort makes the match m require that a frame has come from this port, given by its OpenFlow number.
func SetInPort(m *Match, number uint32) { setField(m, FInPort, Value64(uint64(number)), Ones(32)) }
