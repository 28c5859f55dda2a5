// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"math/rand"

	"weft/flowtable"
	"weft/packet"
)

// This file has a reference implementation of the method execute. It handles one frame in one buffer, one
// action at a time.

type twinResult struct {
	outputs []twinOutput
	drop    packet.DropReason
}

type twinOutput struct {
	port  uint32
	frame []byte
}

func interpret(frame []byte, actions []flowtable.Action) twinResult {
	var r twinResult
	f := append([]byte(nil), frame...)
	for i, a := range actions {
		switch a.Op {
		case flowtable.OpOutput:
			r.outputs = append(r.outputs, twinOutput{a.U32, append([]byte(nil), f...)})
		case flowtable.OpOutputTruncated:
			r.outputs = append(r.outputs, twinOutput{a.U32, append([]byte(nil), f[:min(uint64(len(f)), a.U64)]...)})
		case flowtable.OpDrop:
			r.drop = packet.DropReason(a.U32)
			return r
		case flowtable.OpDecTTL:
			if at := twinTTL(f); at > 0 {
				if f[at] <= 1 {
					r.drop = packet.DropTTLExpired
					return r
				}
				f[at]--
				twinChecksums(f)
			}
		default:
			lower := uint64(0)
			if i+1 < len(actions) {
				lower = actions[i+1].U64
			}
			f = twinSet(f, a, lower)
		}
	}
	if len(r.outputs) == 0 {
		r.drop = packet.DropFlow
	}
	return r
}

func twinSet(f []byte, a flowtable.Action, lower uint64) []byte {
	l3, l4, v6, proto := twinParse(f)
	switch a.Op {
	case flowtable.OpPushVLAN:
		tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, a.U16), uint16(a.U32))
		return append(append(append([]byte(nil), f[:12]...), tag...), f[12:]...)
	case flowtable.OpPopVLAN:
		if twinTagged(f) {
			return append(append([]byte(nil), f[:12]...), f[16:]...)
		}
	case flowtable.OpPushMPLS:
		at := twinType(f)
		shim := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, a.U16), a.U32)
		return append(append(append([]byte(nil), f[:at]...), shim...), f[at+2:]...)
	case flowtable.OpPopMPLS:
		if at := twinType(f); twinShim(f) == 0x8847 {
			binary.BigEndian.PutUint16(f[at:], a.U16)
			return append(append([]byte(nil), f[:at+2]...), f[at+6:]...)
		}
	case flowtable.OpPushPBB:
		header := binary.BigEndian.AppendUint32(append(append([]byte(nil), f[:12]...), 0x88, 0xe7), a.U32)
		return append(header, f...)
	case flowtable.OpPopPBB:
		if at := twinType(f); twinShim(f) == 0x88e7 {
			return append([]byte(nil), f[at+6:]...)
		}
	case flowtable.OpEncapMPLS:
		header := binary.BigEndian.AppendUint16(make([]byte, 12), a.U16)
		return append(binary.BigEndian.AppendUint32(header, a.U32), f...)
	case flowtable.OpDecapMPLS:
		if at := twinType(f); twinShim(f) == 0x8847 {
			return append([]byte(nil), f[at+6:]...)
		}
	case flowtable.OpEncapNSH, flowtable.OpPushNSH:
		header := twinNSH(a.U64)
		if a.Op == flowtable.OpEncapNSH {
			return append(append(append(make([]byte, 12), 0x89, 0x4f), header...), f...)
		}
		at := twinType(f)
		return append(append(append(append([]byte(nil), f[:at]...), 0x89, 0x4f), header...), f[at+2:]...)
	case flowtable.OpDecapNSH, flowtable.OpPopNSH:
		at := twinType(f)
		if binary.BigEndian.Uint16(f[at:]) != packet.EtherTypeNSH {
			return f
		}
		end := at + 2 + int(f[at+3]&63)*4
		if a.Op == flowtable.OpDecapNSH {
			return append([]byte(nil), f[end:]...)
		}
		return append(binary.BigEndian.AppendUint16(append([]byte(nil), f[:at]...), a.U16), f[end:]...)
	case flowtable.OpSetNSHFlags, flowtable.OpSetNSHTTL, flowtable.OpSetNSHSPI, flowtable.OpSetNSHSI,
		flowtable.OpSetNSHC1, flowtable.OpSetNSHC2, flowtable.OpSetNSHC3, flowtable.OpSetNSHC4:
		if at := twinType(f); binary.BigEndian.Uint16(f[at:]) == packet.EtherTypeNSH {
			twinSetNSH(f[at+2:], a)
		}
	case flowtable.OpSetShim:
		if at := twinType(f); twinShim(f) != 0 {
			binary.BigEndian.PutUint32(f[at+2:], a.U32)
		}
	case flowtable.OpSetVLAN:
		if twinTagged(f) {
			binary.BigEndian.PutUint16(f[14:], uint16(a.U32))
		}
	case flowtable.OpSetEthDst, flowtable.OpSetEthSrc:
		mac := binary.BigEndian.AppendUint64(nil, a.U64)[2:]
		at := 0
		if a.Op == flowtable.OpSetEthSrc {
			at = 6
		}
		copy(f[at:], mac)
	case flowtable.OpSetIPv4Src, flowtable.OpSetIPv4Dst:
		if l3 > 0 && !v6 {
			at := l3 + 12
			if a.Op == flowtable.OpSetIPv4Dst {
				at = l3 + 16
			}
			binary.BigEndian.PutUint32(f[at:], a.U32)
		}
	case flowtable.OpSetIPv6Src, flowtable.OpSetIPv6Dst:
		if l3 > 0 && v6 {
			at := l3 + 8
			if a.Op == flowtable.OpSetIPv6Dst {
				at = l3 + 24
			}
			binary.BigEndian.PutUint64(f[at:], a.U64)
			binary.BigEndian.PutUint64(f[at+8:], lower)
		}
	case flowtable.OpSetTOS:
		if l3 > 0 && !v6 {
			f[l3+1] = byte(a.U32)
		} else if l3 > 0 {
			word := binary.BigEndian.Uint32(f[l3:])&^(0xff<<20) | a.U32&0xff<<20
			binary.BigEndian.PutUint32(f[l3:], word)
		}
	case flowtable.OpSetTTL:
		if at := twinTTL(f); at > 0 {
			f[at] = byte(a.U32)
		}
	case flowtable.OpSetTpSrc, flowtable.OpSetTpDst:
		if l4 > 0 && (proto == packet.ProtoTCP || proto == packet.ProtoUDP) {
			at := l4
			if a.Op == flowtable.OpSetTpDst {
				at += 2
			}
			binary.BigEndian.PutUint16(f[at:], uint16(a.U32))
		}
	}
	twinChecksums(f)
	return f
}

// twinType returns the offset of the frame's EtherType, behind the VLAN tags.
func twinType(f []byte) int {
	at := 12
	for twinTagged(f[at-12:]) {
		at += 4
	}
	return at
}

// twinNSH returns a network service header with these packet.NSHFields.
func twinNSH(fields uint64) []byte {
	length := 2
	if fields>>40&0xff == packet.NSHType1 {
		length = 6
	}
	h := make([]byte, 4*length)
	binary.BigEndian.PutUint64(h, fields<<16>>16)
	h[0] = byte(fields>>56)<<4 | byte(fields>>48)>>2
	h[1] = byte(fields>>48)<<6 | byte(length)
	return h
}

func twinSetNSH(h []byte, a flowtable.Action) {
	v := binary.BigEndian.AppendUint32(nil, a.U32)
	switch a.Op {
	case flowtable.OpSetNSHFlags:
		h[0] = h[0]&^0x30 | v[3]<<4
	case flowtable.OpSetNSHTTL:
		h[0], h[1] = h[0]&^0xf|v[3]>>2, h[1]&63|v[3]<<6
	case flowtable.OpSetNSHSPI:
		copy(h[4:7], v[1:])
	case flowtable.OpSetNSHSI:
		h[7] = v[3]
	default:
		if h[2]&0xf == packet.NSHType1 {
			copy(h[8+4*int(a.Op-flowtable.OpSetNSHC1):], v)
		}
	}
}

// twinShim returns the EtherType of a frame that has a label stack entry or an I-TAG (a shim) behind its
// Ethernet header; 0: it has none.
func twinShim(f []byte) uint16 {
	if t := binary.BigEndian.Uint16(f[twinType(f):]); t == 0x8847 || t == 0x88e7 {
		return t
	}
	return 0
}

func twinTagged(f []byte) bool {
	t := binary.BigEndian.Uint16(f[12:])
	return t == 0x8100 || t == 0x88a8
}

func twinParse(f []byte) (l3, l4 int, v6 bool, proto byte) {
	at := 12
	for t := binary.BigEndian.Uint16(f[at:]); t == 0x8100 || t == 0x88a8; t = binary.BigEndian.Uint16(f[at:]) {
		at += 4
	}
	switch binary.BigEndian.Uint16(f[at:]) {
	case 0x0800:
		return at + 2, at + 2 + 20, false, f[at+2+9]
	case 0x86dd:
		return at + 2, at + 2 + 40, true, f[at+2+6]
	}
	return 0, 0, false, 0
}

func twinTTL(f []byte) int {
	l3, _, v6, _ := twinParse(f)
	switch {
	case l3 == 0:
		return 0
	case v6:
		return l3 + 7
	}
	return l3 + 8
}

func twinSum(sum uint32, b []byte) uint32 {
	for i := range b {
		sum += uint32(b[i]) << (8 * (1 - i%2))
	}
	return sum
}

func twinFold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// twinChecksums computes the checksums of IP, TCP and UDP. A UDP checksum of 0 stays
// 0.
func twinChecksums(f []byte) {
	l3, l4, v6, proto := twinParse(f)
	if l3 == 0 {
		return
	}
	pseudo := uint32(proto) + uint32(len(f)-l4)
	if v6 {
		pseudo = twinSum(pseudo, f[l3+8:l3+40])
	} else {
		f[l3+10], f[l3+11] = 0, 0
		binary.BigEndian.PutUint16(f[l3+10:], twinFold(twinSum(0, f[l3:l3+20])))
		pseudo = twinSum(pseudo, f[l3+12:l3+20])
	}
	at := l4 + 16
	if proto == packet.ProtoUDP {
		at = l4 + 6
		if f[at] == 0 && f[at+1] == 0 {
			return
		}
	} else if proto != packet.ProtoTCP {
		return
	}
	f[at], f[at+1] = 0, 0
	sum := twinFold(twinSum(pseudo, f[l4:]))
	if sum == 0 && proto == packet.ProtoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(f[at:], sum)
}

// randomFrame returns a valid frame to dst with random tags, possibly with IP, TCP or
// UDP.
func randomFrame(rng *rand.Rand, dst uint64, maxLen int) []byte {
	f := make([]byte, 12, maxLen)
	packet.Ethernet(append(f, 0, 0, 0, 0)).SetDst(dst)
	copy(f[6:], []byte{2, 0, 0, byte(rng.Intn(4)), 0, 1})
	for range rng.Intn(3) {
		f = binary.BigEndian.AppendUint16(f, []uint16{0x8100, 0x88a8}[rng.Intn(2)])
		f = binary.BigEndian.AppendUint16(f, uint16(rng.Intn(1<<16)))
	}
	payload := make([]byte, rng.Intn(maxLen-100))
	rng.Read(payload)
	kind := rng.Intn(5)
	if kind == 4 {
		return append(binary.BigEndian.AppendUint16(f, []uint16{0x88b5, 0x8847, 0x88e7}[rng.Intn(3)]), append(payload, make([]byte, 20)...)...)
	}
	var l4 []byte
	proto := byte(packet.ProtoUDP)
	if kind&1 == 0 {
		proto = packet.ProtoTCP
		l4 = make([]byte, 20)
		rng.Read(l4[:12])
		l4[12] = 5 << 4
		l4[13] = byte(rng.Intn(64))
	} else {
		l4 = make([]byte, 8)
		rng.Read(l4[:4])
		binary.BigEndian.PutUint16(l4[4:], uint16(8+len(payload)))
		l4[7] = byte(rng.Intn(2)) // a UDP checksum of 0 means none
	}
	l4 = append(l4, payload...)
	if kind&2 == 0 {
		ip := make([]byte, 20)
		rng.Read(ip)
		ip[0] = 0x45
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(l4)))
		ip[6], ip[7], ip[9] = 0x40, 0, proto
		f = append(append(binary.BigEndian.AppendUint16(f, 0x0800), ip...), l4...)
	} else {
		ip := make([]byte, 40)
		rng.Read(ip)
		ip[0] = 0x60 | ip[0]&15
		binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
		ip[6] = proto
		if l4[6]|l4[7] == 0 && proto == packet.ProtoUDP {
			l4[7] = 1 // UDP over IPv6 needs a checksum
		}
		f = append(append(binary.BigEndian.AppendUint16(f, 0x86dd), ip...), l4...)
	}
	twinChecksums(f)
	return f
}

// randomActions returns up to 8 random actions with outputs to the given number of
// ports.
func randomActions(rng *rand.Rand, ports int) []flowtable.Action {
	ops := []flowtable.Op{
		flowtable.OpOutput, flowtable.OpOutput, flowtable.OpOutput, flowtable.OpPushVLAN, flowtable.OpPopVLAN, flowtable.OpSetVLAN,
		flowtable.OpSetEthDst, flowtable.OpSetEthSrc, flowtable.OpSetIPv4Src, flowtable.OpSetIPv4Dst, flowtable.OpSetIPv6Src,
		flowtable.OpSetIPv6Dst, flowtable.OpSetTOS, flowtable.OpSetTTL, flowtable.OpDecTTL, flowtable.OpSetTpSrc, flowtable.OpSetTpDst,
		flowtable.OpDrop, flowtable.OpOutputTruncated,
	}
	var list []flowtable.Action
	for range rng.Intn(9) {
		a := flowtable.Action{Op: ops[rng.Intn(len(ops))], U32: rng.Uint32(), U64: rng.Uint64()}
		switch a.Op {
		case flowtable.OpOutput:
			a.U32 = uint32(1 + rng.Intn(ports))
		case flowtable.OpOutputTruncated:
			a.U32, a.U64 = uint32(1+rng.Intn(ports)), uint64(14+rng.Intn(800))
		case flowtable.OpPushVLAN:
			a.U16, a.U32 = 0x8100, uint32(rng.Intn(1<<16))
		case flowtable.OpSetVLAN:
			a.U32 = uint32(rng.Intn(1 << 16))
		case flowtable.OpSetEthDst, flowtable.OpSetEthSrc:
			a.U64 &= 1<<48 - 1
		case flowtable.OpDrop:
			if rng.Intn(3) > 0 {
				continue
			}
			a.U32 = uint32(packet.DropFlow)
		}
		list = append(list, a)
		if a.Op == flowtable.OpSetIPv6Src || a.Op == flowtable.OpSetIPv6Dst {
			list = append(list, flowtable.Action{Op: flowtable.OpData, U64: rng.Uint64()})
		}
	}
	// A translation sets no field of a header that a push has hidden or a pop has revealed.
	if rng.Intn(3) == 0 {
		for range 1 + rng.Intn(3) {
			a := randomShim(rng)
			list = append(list, a)
			if a.Op == flowtable.OpPopMPLS || a.Op == flowtable.OpPopPBB || a.Op == flowtable.OpDecapMPLS || a.Op == flowtable.OpDecapNSH || a.Op == flowtable.OpPopNSH {
				break // a translation looks up the frame again before it changes more headers
			}
		}
		list = append(list, flowtable.Action{Op: flowtable.OpOutput, U32: uint32(1 + rng.Intn(ports))})
	}
	return list
}

// randomShim returns a random action on a label stack entry, an I-TAG or an NSH.
func randomShim(rng *rand.Rand) flowtable.Action {
	ops := []flowtable.Op{flowtable.OpPushMPLS, flowtable.OpPopMPLS, flowtable.OpPushPBB, flowtable.OpPopPBB, flowtable.OpSetShim, flowtable.OpEncapMPLS, flowtable.OpDecapMPLS,
		flowtable.OpEncapNSH, flowtable.OpPushNSH, flowtable.OpDecapNSH, flowtable.OpPopNSH, flowtable.OpSetNSHFlags, flowtable.OpSetNSHTTL, flowtable.OpSetNSHSPI,
		flowtable.OpSetNSHSI, flowtable.OpSetNSHC1, flowtable.OpSetNSHC2, flowtable.OpSetNSHC3, flowtable.OpSetNSHC4}
	a := flowtable.Action{Op: ops[rng.Intn(len(ops))], U32: rng.Uint32()}
	switch a.Op {
	case flowtable.OpPushMPLS, flowtable.OpEncapMPLS:
		a.U16 = 0x8847
	case flowtable.OpPopMPLS, flowtable.OpPopNSH:
		a.U16 = 0x88b5
	case flowtable.OpEncapNSH, flowtable.OpPushNSH:
		a.U64 = rng.Uint64()&(3<<56|63<<48|0xff<<32|0xffffffff) | uint64(1+rng.Intn(2))<<40
	case flowtable.OpSetNSHFlags:
		a.U32 &= 3
	case flowtable.OpSetNSHTTL:
		a.U32 &= 63
	}
	return a
}
