// SPDX-License-Identifier: Apache-2.0

package openflow

import "weft/flowtable"

// This file has the match of OpenFlow 1.0 (5.2.3), which always has the same 12 fields.

// Match10Len is the size of an encoded match of OpenFlow 1.0 in bytes.
const Match10Len = 40

// Bits of the word "wildcards" (OpenFlow 1.0, 5.2.3). A set bit means that the field is not compared. Each of
// the two IP addresses has 6 bits instead: the number of its low bits that are not compared.
const (
	wild10InPort  = 1 << 0
	wild10VLAN    = 1 << 1
	wild10DLSrc   = 1 << 2
	wild10DLDst   = 1 << 3
	wild10DLType  = 1 << 4
	wild10NWProto = 1 << 5
	wild10TPSrc   = 1 << 6
	wild10TPDst   = 1 << 7
	wild10NWSrc   = 8  // position of the lowest of the 6 bits
	wild10NWDst   = 14 // position of the lowest of the 6 bits
	wild10PCP     = 1 << 20
	wild10TOS     = 1 << 21
	wild10All     = 1<<22 - 1
)

// Exact10 reports whether an encoded match of OpenFlow 1.0 compares all fields. b has at least 4 bytes.
func Exact10(b []byte) bool { return be.Uint32(b)&wild10All == 0 }

// DecodeMatch10 decodes the match of OpenFlow 1.0, whose length must be Match10Len. It
// leaves out fields whose prerequisites are missing, as the specification says.
func DecodeMatch10(b []byte) (match Match) {
	m, wild := &match, be.Uint32(b)
	has := func(bit uint32) bool { return wild&bit == 0 }
	put := func(id FieldID, v uint64) { setField(m, id, Value64(v), Ones(8*uint(fields[id].bytes))) }
	if has(wild10InPort) {
		put(FInPort, uint64(be.Uint16(b[4:])))
	}
	if has(wild10DLSrc) {
		put(FEthSrc, ValueOf(b[6:12])[1])
	}
	if has(wild10DLDst) {
		put(FEthDst, ValueOf(b[12:18])[1])
	}
	vlan := uint64(be.Uint16(b[18:]))
	if has(wild10VLAN) {
		put(FDLVLAN, vlan)
	}
	if has(wild10PCP) && !(has(wild10VLAN) && vlan == dlVLANNone) {
		put(FDLVLANPCP, uint64(b[20]&7))
	}
	if has(wild10DLType) {
		put(FEthType, uint64(be.Uint16(b[22:])))
	}
	if has(wild10TOS) {
		put(FNwTOS, uint64(b[24])&tosDSCP)
	}
	if has(wild10NWProto) {
		SetBits(m, flowtable.WIP, uint64(b[25])<<flowtable.ProtoShift, 0xff<<flowtable.ProtoShift)
	}
	for _, a := range []struct {
		offset int
		shift  uint
		id     FieldID
	}{{28, wild10NWSrc, FIPSrc}, {32, wild10NWDst, FIPDst}} {
		n := uint(wild >> a.shift & 0x3f)
		mask := Ones(32).AndNot(Ones(min(n, 32)))
		setField(m, a.id, Value64(uint64(be.Uint32(b[a.offset:]))).And(mask), mask)
	}
	if has(wild10TPSrc) {
		SetBits(m, flowtable.WL4, uint64(be.Uint16(b[36:]))<<flowtable.TPSrcShift, 0xffff<<flowtable.TPSrcShift)
	}
	if has(wild10TPDst) {
		SetBits(m, flowtable.WL4, uint64(be.Uint16(b[38:]))<<flowtable.TPDstShift, 0xffff<<flowtable.TPDstShift)
	}
	narrowICMP(m)
	if NeedNSH.Met(m) {
		ClearBits(m, flowtable.WIPv4, ^uint64(0)) // OpenFlow 1.0 has no fields of an NSH
	}
	_, _ = normalize(m) // normalize cannot fail: the match has neither fragments nor connections
	return match
}

// narrowICMP reduces ICMP type and code from 16 bits each to the 8 bits that a Flow
// stores.
func narrowICMP(m *Match) {
	if NeedICMP.Met(m) {
		ClearBits(m, flowtable.WL4, 0xff00<<flowtable.TPSrcShift|0xff00<<flowtable.TPDstShift)
	}
}

// AppendMatch10 appends a match in the encoding of OpenFlow 1.0. It leaves out the fields that OpenFlow 1.0
// lacks.
func AppendMatch10(b []byte, m *Match) []byte {
	start := len(b)
	b = appendZeros(b, Match10Len)
	o, wild := b[start:], uint32(wild10All)&^(0x3f<<wild10NWSrc)&^(0x3f<<wild10NWDst)
	get := func(id FieldID) uint64 { return WholeField(id).Get(&m.Value)[1] }
	all := func(id FieldID) bool { return WholeField(id).Get(&m.Mask) == Ones(uint(fields[id].storedBits())) }
	if m.Mask.Key().InPort() != 0 {
		wild &^= wild10InPort
		be.PutUint16(o[4:], uint16(get(FInPort)))
	}
	if all(FEthSrc) {
		wild &^= wild10DLSrc
		AppendValue(o[6:6:12], Value64(get(FEthSrc)), 6)
	}
	if all(FEthDst) {
		wild &^= wild10DLDst
		AppendValue(o[12:12:18], Value64(get(FEthDst)), 6)
	}
	wild = putVLAN10(o, m, wild)
	if all(FEthType) {
		wild &^= wild10DLType
		be.PutUint16(o[22:], uint16(get(FEthType)))
	}
	if m.Mask[flowtable.WIP]>>flowtable.TOSShift&tosDSCP != 0 {
		wild &^= wild10TOS
		o[24] = uint8(get(FNwTOS) & tosDSCP)
	}
	if all(FIPProto) {
		wild &^= wild10NWProto
		o[25] = uint8(get(FIPProto))
	}
	for _, a := range []struct {
		offset int
		shift  uint
		id     FieldID
	}{{28, wild10NWSrc, FIPSrc}, {32, wild10NWDst, FIPDst}} {
		n := max(WholeField(a.id).Get(&m.Mask).prefixLen(32), 0)
		if NeedNSH.Met(m) {
			n = 0
		}
		wild |= uint32(32-n) << a.shift
		be.PutUint32(o[a.offset:], uint32(get(a.id)))
	}
	icmp := NeedICMP.Met(m)
	if all(FTCPSrc) || icmp && all(FICMPType) {
		wild &^= wild10TPSrc
		be.PutUint16(o[36:], uint16(get(FTCPSrc)))
	}
	if all(FTCPDst) || icmp && all(FICMPCode) {
		wild &^= wild10TPDst
		be.PutUint16(o[38:], uint16(get(FTCPDst)))
	}
	be.PutUint32(o, wild)
	return b
}

// putVLAN10 writes the VLAN tag of a match to the encoded match o of OpenFlow 1.0. It returns the wildcards
// without the bits of the fields that it has written.
func putVLAN10(o []byte, m *Match, wild uint32) uint32 {
	value, mask := m.Value[flowtable.WEthSrc]&flowtable.VLANTCI, m.Mask[flowtable.WEthSrc]&flowtable.VLANTCI
	switch {
	case mask&flowtable.VLANPresent != 0 && value&flowtable.VLANPresent == 0:
		wild &^= wild10VLAN
		be.PutUint16(o[18:], dlVLANNone)
	case mask&flowtable.VLANID == flowtable.VLANID:
		wild &^= wild10VLAN
		be.PutUint16(o[18:], uint16(value&flowtable.VLANID))
	}
	if value&flowtable.VLANPresent != 0 && mask&flowtable.VLANPCP == flowtable.VLANPCP {
		wild &^= wild10PCP
		o[20] = uint8(value >> 13 & 7)
	}
	return wild
}
