// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"math/bits"
)

// SetIPv4Ends sets both addresses (source<<32 | destination) and both ports (source<<16 | destination) of a
// TCP or UDP frame over IPv4, and updates its checksums. It returns false and changes nothing if the frame is
// neither TCP nor UDP over IPv4, or if its transport checksum is unfinished.
func (f *Frame) SetIPv4Ends(addresses uint64, ports uint32) bool {
	if f.L4 == 0 || f.Proto != ProtoTCP && f.Proto != ProtoUDP || f.partial() {
		return false
	}
	h := f.Header()
	ip, l4 := h[f.L3:], h[f.L4:]
	if len(ip) < IPv4Len || len(l4) < UDPLen || ip[0]>>4 != 4 {
		return false
	}
	// All changes are added up to one sum, of the inverted old words and the new words (RFC
	// 1624 equation 3).
	moved := addSums(addresses, ^binary.BigEndian.Uint64(ip[12:]))
	movedPorts := uint64(ports) + uint64(^binary.BigEndian.Uint32(l4))
	binary.BigEndian.PutUint64(ip[12:], addresses)
	binary.BigEndian.PutUint32(l4, ports)
	binary.BigEndian.PutUint16(ip[10:], mend(binary.BigEndian.Uint16(ip[10:]), moved))
	off := 16
	if f.Proto == ProtoUDP {
		if off = 6; binary.BigEndian.Uint16(l4[6:]) == 0 {
			return true
		}
	}
	sum := mend(binary.BigEndian.Uint16(l4[off:]), addSums(moved, movedPorts))
	if sum == 0 && f.Proto == ProtoUDP {
		sum = 0xffff // a UDP checksum of 0 means "none" (RFC 768)
	}
	binary.BigEndian.PutUint16(l4[off:], sum)
	return true
}

// addSums adds two 64-bit words with end-around carry (RFC 1071 section 2).
func addSums(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	return sum + carry
}

// mend returns a checksum after a change of bytes that it covers. moved is the sum, in 64 bits, of the
// inverted old words and the new words. mend folds this sum to 16 bits in two steps. Each step adds a
// number to itself with its halves exchanged. The upper half of the result is the folded sum.
func mend(checksum uint16, moved uint64) uint16 {
	moved = addSums(moved, uint64(^checksum))
	half := uint32((moved + bits.RotateLeft64(moved, 32)) >> 32)
	return ^uint16((half + bits.RotateLeft32(half, 16)) >> 16)
}
