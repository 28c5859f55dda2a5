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
	wasAddresses, wasPorts := binary.BigEndian.Uint64(ip[12:]), binary.BigEndian.Uint32(l4)
	before, after := fold(wasAddresses), fold(addresses)
	binary.BigEndian.PutUint64(ip[12:], addresses)
	binary.BigEndian.PutUint32(l4, ports)
	ip.SetChecksum(MendChecksum(ip.Checksum(), before, after))
	off := 16
	if f.Proto == ProtoUDP {
		if off = 6; l4[6]|l4[7] == 0 {
			return true
		}
	}
	sum := MendChecksum(binary.BigEndian.Uint16(l4[off:]), AddSums(before, sum32(wasPorts)), AddSums(after, sum32(ports)))
	if sum == 0 && f.Proto == ProtoUDP {
		sum = 0xffff // RFC 768: 0 would say that there is none
	}
	binary.BigEndian.PutUint16(l4[off:], sum)
	return true
}
