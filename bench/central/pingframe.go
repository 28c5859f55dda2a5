// SPDX-License-Identifier: Apache-2.0

package central

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Offsets and sizes in a ping: Ethernet, IPv4 without options, ICMP.
const (
	ipStart   = 14
	icmpStart = ipStart + 20
	pingSize  = icmpStart + 8 + 32

	icmpRequest, icmpReply = 8, 0
)

// ping returns an Ethernet frame with an ICMP echo message (RFC 792).
func ping(from, to [6]byte, source, destination netip.Addr, kind byte, id, sequence uint16) []byte {
	f := make([]byte, pingSize)
	copy(f[0:], to[:])
	copy(f[6:], from[:])
	binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
	ip := f[ipStart:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_ICMP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], source.AsSlice())
	copy(ip[16:], destination.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip[:20]))
	icmp := f[icmpStart:]
	icmp[0] = kind
	binary.BigEndian.PutUint16(icmp[4:], id)
	binary.BigEndian.PutUint16(icmp[6:], sequence)
	binary.BigEndian.PutUint16(icmp[2:], checksum(icmp))
	return f
}

// checksum returns the Internet checksum of data of even length (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// rarp returns a reverse ARP request (RFC 903) in the form that QEMU sends. With this frame, a virtual
// machine announces that it has moved to another host.
func rarp(mac [6]byte) []byte {
	f := make([]byte, 60)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(f[6:], mac[:])
	copy(f[12:], []byte{0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3})
	copy(f[22:], mac[:])
	copy(f[32:], mac[:])
	return f
}
