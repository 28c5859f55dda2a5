package packet

import (
	"encoding/binary"
	"math/bits"
)

// SetIPv4Ends sets both addresses and both ports of a TCP or UDP header over IPv4
// at once: src<<32 | dst, and source port<<16 | destination port. It reports false,
// having changed nothing, where the frame has no such header, or one whose checksum
// is to be finished.
func (f *Frame) SetIPv4Ends(addresses uint64, ports uint32) bool {
	if f.L4 == 0 || f.Proto != ProtoTCP && f.Proto != ProtoUDP || f.partial() {
		return false
	}
	h := f.Header()
	ip, l4 := h[f.L3:], h[f.L4:]
	if len(ip) < IPv4Len || len(l4) < UDPLen || ip[0]>>4 != 4 {
		return false
	}
	// The sums of RFC 1624, eqn. 3, of all that changes at once: ~m of what goes, m'
	// of what comes.
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
		sum = 0xffff // RFC 768: 0 would say that there is none
	}
	binary.BigEndian.PutUint16(l4[off:], sum)
	return true
}

// addSums adds with the carry round the end: what 64 bits are modulo 65,535 is what
// their 16-bit words add up to (RFC 1071 section 2).
func addSums(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	return sum + carry
}

// mend is the checksum that was sum, with moved added to what it covers. A word plus
// its own halves exchanged has their sum in the upper half, the carry round its end
// included.
func mend(sum uint16, moved uint64) uint16 {
	moved = addSums(moved, uint64(^sum))
	half := uint32((moved + bits.RotateLeft64(moved, 32)) >> 32)
	return ^uint16((half + bits.RotateLeft32(half, 16)) >> 16)
}
