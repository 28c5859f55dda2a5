// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"

	"weft/packet"
)

// Values of the ECN field (RFC 3168 section 5).
const (
	ecnNotECT = iota
	ecnECT1
	ecnECT0
	ecnCE
)

// mergeECN sets the ECN field of the inner IP header as RFC 6040 section 4.2 requires. f begins with
// the inner Ethernet header, and tos is the outer traffic class. It does nothing to a frame without an
// IP header.
func mergeECN(b *packet.Batch, f *packet.Frame, tos uint8) packet.DropReason {
	from := tos & 3
	if from == ecnNotECT || from == ecnECT0 {
		return packet.DropNone // outer Not-ECT and ECT(0) leave every inner ECN field unchanged
	}
	ip := innerIP(b, f)
	if ip == nil {
		return packet.DropNone
	}
	v4 := ip[0]>>4 == 4
	inner := ip[1] >> 4
	if v4 {
		inner = ip[1]
	}
	merged := inner & 3
	switch {
	case merged == ecnNotECT && from == ecnCE:
		return packet.DropBadECN
	case from == ecnCE:
		merged = ecnCE
	case merged == ecnECT0: // merged from ECT(1)
		merged = ecnECT1
	}
	if merged == inner&3 {
		return packet.DropNone
	}
	if v4 {
		before := binary.BigEndian.Uint16(ip)
		ip[1] = ip[1]&^3 | merged
		v := packet.IPv4(ip)
		v.SetChecksum(packet.MendChecksum(v.Checksum(), before, binary.BigEndian.Uint16(ip)))
	} else {
		ip[1] = ip[1]&^0x30 | merged<<4
	}
	return packet.DropNone
}

// innerIP returns the fixed part of the IP header of a frame with at most two VLAN tags; nil: there is
// none.
func innerIP(b *packet.Batch, f *packet.Frame) []byte {
	b.Pullup(f, min(f.Len(), packet.EthernetLen+2*packet.VLANLen+packet.IPv6Len))
	h := f.Header()
	if len(h) < packet.EthernetLen {
		return nil
	}
	etherType, off := packet.Ethernet(h).Type(), packet.EthernetLen
	for range 2 {
		if packet.IsVLAN(etherType) && len(h) >= off+packet.VLANLen {
			etherType = binary.BigEndian.Uint16(h[off+2:])
			off += packet.VLANLen
		}
	}
	switch {
	case etherType == packet.EtherTypeIPv4 && len(h) >= off+packet.IPv4Len && h[off]>>4 == 4:
		return h[off : off+packet.IPv4Len]
	case etherType == packet.EtherTypeIPv6 && len(h) >= off+packet.IPv6Len && h[off]>>4 == 6:
		return h[off : off+packet.IPv6Len]
	}
	return nil
}
