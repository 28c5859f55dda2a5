// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"encoding/binary"
	"net/netip"

	"weft/packet"
)

const (
	ethernetBytes = 14
	ipv4Bytes     = 20
	udpBytes      = 8
	serverPort    = 67
	clientPort    = 68
	answerTTL     = 64
)

var broadcastMAC = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// datagram is a DHCP request. Its payload is a slice of the frame.
type datagram struct {
	ethSrc  [6]byte
	payload []byte
}

// parse returns the DHCP request in a frame that is not fragmented. ok is false for other frames. The
// UDP checksum is not compared, because guests leave it to the switch (virtio 1.2 section 5.1.6.2).
func parse(frame []byte) (d datagram, ok bool) {
	if len(frame) < ethernetBytes+ipv4Bytes || len(frame) > MaxRequest || binary.BigEndian.Uint16(frame[12:]) != packet.EtherTypeIPv4 {
		return d, false
	}
	copy(d.ethSrc[:], frame[6:])
	ip := frame[ethernetBytes:]
	header, total := int(ip[0]&0xf)*4, int(binary.BigEndian.Uint16(ip[2:]))
	const fragment = 0x3fff // flag MF and the offset
	if ip[0]>>4 != 4 || header < ipv4Bytes || total < header+udpBytes || total > len(ip) || ip[9] != packet.ProtoUDP || binary.BigEndian.Uint16(ip[6:])&fragment != 0 {
		return d, false
	}
	udp := ip[header:total]
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp) != clientPort || binary.BigEndian.Uint16(udp[2:]) != serverPort || n < udpBytes || n > len(udp) {
		return d, false
	}
	d.payload = udp[udpBytes:n]
	return d, true
}

// frame returns a frame with a DHCP message from the network's address Service to a client.
func (n *Network) frame(ethDst [6]byte, dst netip.Addr, payload []byte) []byte {
	b := make([]byte, ethernetBytes+ipv4Bytes+udpBytes, ethernetBytes+ipv4Bytes+udpBytes+len(payload))
	copy(b, ethDst[:])
	copy(b[6:], n.ServiceMAC[:])
	binary.BigEndian.PutUint16(b[12:], packet.EtherTypeIPv4)
	ip := b[ethernetBytes:][:ipv4Bytes]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Bytes+udpBytes+len(payload)))
	ip[8], ip[9] = answerTTL, packet.ProtoUDP
	from, to := n.Service.As4(), dst.As4()
	copy(ip[12:], from[:])
	copy(ip[16:], to[:])
	binary.BigEndian.PutUint16(ip[10:], packet.Checksum(ip))
	udp := b[ethernetBytes+ipv4Bytes:]
	binary.BigEndian.PutUint16(udp, serverPort)
	binary.BigEndian.PutUint16(udp[2:], clientPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(udpBytes+len(payload)))
	b = append(b, payload...)
	udp = b[ethernetBytes+ipv4Bytes:]
	sum := packet.AddSums(packet.Sum(udp), packet.SumIPv4(binary.BigEndian.Uint32(from[:]), binary.BigEndian.Uint32(to[:]), packet.ProtoUDP, len(udp)))
	if sum = ^sum; sum == 0 { // 0 means no checksum (RFC 768)
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return b
}
