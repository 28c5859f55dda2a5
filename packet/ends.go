package packet

import "encoding/binary"

// SetIPv4Ends sets both addresses and both ports of a TCP or UDP header over IPv4
// at once: src<<32 | dst, and source port<<16 | destination port. It reports false,
// having changed nothing, where the frame has no such header, or one whose checksum
// is to be finished.
func (f *Frame) SetIPv4Ends(addresses uint64, ports uint32) bool {
	if f.L4 == 0 || f.Proto != ProtoTCP && f.Proto != ProtoUDP || f.partial() {
		return false
	}
	h := f.Header()
	ip, l4 := IPv4(h[f.L3:]), h[f.L4:]
	if ip[0]>>4 != 4 {
		return false
	}
	// The sums of RFC 1624, eqn. 3, of all that changes at once: ~m of what goes, m'
	// of what comes.
	wasAddresses, wasPorts := binary.BigEndian.Uint64(ip[12:]), binary.BigEndian.Uint32(l4)
	moved := uint64(uint32(addresses)) + addresses>>32 + uint64(^uint32(wasAddresses)) + ^wasAddresses>>32
	binary.BigEndian.PutUint64(ip[12:], addresses)
	binary.BigEndian.PutUint32(l4, ports)
	ip.SetChecksum(mend(ip.Checksum(), moved))
	off := 16
	if f.Proto == ProtoUDP {
		if off = 6; l4[6]|l4[7] == 0 {
			return true
		}
	}
	sum := mend(binary.BigEndian.Uint16(l4[off:]), moved+uint64(ports)+uint64(^wasPorts))
	if sum == 0 && f.Proto == ProtoUDP {
		sum = 0xffff // RFC 768: 0 would say that there is none
	}
	binary.BigEndian.PutUint16(l4[off:], sum)
	return true
}

// mend is the checksum that was sum, with moved added to what it covers.
func mend(sum uint16, moved uint64) uint16 {
	moved += uint64(^sum)
	moved = moved>>32 + moved&0xffffffff
	moved = moved>>16 + moved&0xffff
	moved = moved>>16 + moved&0xffff
	return ^uint16(moved>>16 + moved)
}
