// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"net/netip"

	"weft/packet"
)

const (
	// vxlanPort is the UDP port that IANA has assigned to VXLAN.
	vxlanPort = 4789
	// vxlanValid is the flag I, which says that the VNI is valid. RFC 7348 reserves all other flags.
	vxlanValid = 0x08
)

// Overhead returns how many bytes longer an IP packet to remote is than the inner IP packet: the outer
// IP, UDP and tunnel headers and the inner Ethernet header, without Geneve options.
func Overhead(remote netip.Addr) int {
	outer := packet.IPv4Len
	if remote.Is6() {
		outer = packet.IPv6Len
	}
	return outer + packet.UDPLen + HeaderLen + packet.EthernetLen
}

// Bits of the VXLAN header as a 64-bit big-endian word.
const (
	validBit = vxlanValid << 56
	vniBits  = 0xffffff << 8
	// gbpBits are the flags G, D and A and the group policy identifier
	// (draft-smith-vxlan-group-policy-05 section 2.1).
	gbpG     = 0x80 << 56
	gbpFlags = 0x48 // D and A
	gbpBits  = gbpG | gbpFlags<<48 | 0xffff<<32
	// gpeP is the flag "next protocol present". gpeB marks broadcast, unknown unicast
	// or multicast (draft-ietf-nvo3-vxlan-gpe-13 section 3.2).
	gpeP        = 0x04 << 56
	gpeB        = 0x02 << 56
	gpeVersion  = 0x30 << 56
	gpeO        = 0x01 << 56 // maintenance packet (OAM)
	gpeNext     = 0xff << 32
	gpeEthernet = 0x03 << 32
)

// allowed reports whether the setting Extensions allows the reserved bits that a VXLAN header has.
func allowed(header uint64, extensions uint8) bool {
	reserved := header &^ (validBit | vniBits)
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
