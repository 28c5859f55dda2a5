// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"
	"net/netip"

	"weft/packet"
)

// VXLAN is a view of a VXLAN header, 8 bytes (RFC 7348 section 5). The view does not
// validate the header.
type VXLAN []byte

const (
	// VXLANLen is the length of the header in bytes.
	VXLANLen = 8
	// VXLANPort is the UDP port that IANA assigned to VXLAN.
	VXLANPort = 4789
	// vxlanValid is the I flag: the VNI is valid. RFC 7348 reserves all other flags.
	vxlanValid = 0x08
)

// Overhead returns the part of an IP packet to remote that the inner IP packet cannot use,
// in bytes: outer IP, UDP and VXLAN headers and the inner Ethernet header.
func Overhead(remote netip.Addr) int {
	outer := packet.IPv4Len
	if remote.Is6() {
		outer = packet.IPv6Len
	}
	return outer + packet.UDPLen + VXLANLen + packet.EthernetLen
}

// Valid reports whether the I flag (valid VNI) is set.
func (h VXLAN) Valid() bool { return h[0]&vxlanValid != 0 }

// VNI returns the VXLAN network identifier, 24 bits.
func (h VXLAN) VNI() uint32 { return binary.BigEndian.Uint32(h[4:]) >> 8 }

// Masks for the VXLAN header as a 64-bit big-endian word.
const (
	validBit = vxlanValid << 56
	vniBits  = 0xffffff << 8
	// gbpBits are the flags G, D and A and the group policy identifier
	// (draft-smith-vxlan-group-policy-05 section 2.1).
	gbpG    = 0x80 << 56
	gbpBits = gbpG | 0x40<<48 | 0x08<<48 | 0xffff<<32
	// gpeP is the flag "next protocol present". gpeB marks broadcast, unknown unicast
	// or multicast (draft-ietf-nvo3-vxlan-gpe-13 section 3.2).
	gpeP        = 0x04 << 56
	gpeB        = 0x02 << 56
	gpeNext     = 0xff << 32
	gpeEthernet = 0x03 << 32
)

// allowed reports whether this Extensions setting allows the header's reserved bits.
func (h VXLAN) allowed(extensions uint8) bool {
	reserved := binary.BigEndian.Uint64(h) &^ (validBit | vniBits)
	switch extensions {
	case ExtGBP:
		if reserved&gbpG != 0 {
			reserved &^= gbpBits
		}
	case ExtGPE:
		reserved &^= gpeB
		if reserved&(gpeP|gpeNext) == gpeP|gpeEthernet {
			reserved &^= gpeP | gpeNext
		}
	}
	return reserved == 0
}
