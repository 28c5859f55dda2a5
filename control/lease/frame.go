// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"encoding/binary"
	"net/netip"

	"weft/packet"
)

const (
	serverPort = 67
	clientPort = 68
	answerTTL  = 64
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
	if len(frame) < packet.EthernetLen+packet.IPv4Len || len(frame) > MaxRequest || binary.BigEndian.Uint16(frame[12:]) != packet.EtherTypeIPv4 {
		return d, false
	}
	copy(d.ethSrc[:], frame[6:])
	ip := frame[packet.EthernetLen:]
	header, total := int(ip[0]&0xf)*4, int(binary.BigEndian.Uint16(ip[2:]))
	const fragment = 0x3fff // flag MF and the offset
	if ip[0]>>4 != 4 || header < packet.IPv4Len || total < header+packet.UDPLen || total > len(ip) || ip[9] != packet.ProtoUDP || binary.BigEndian.Uint16(ip[6:])&fragment != 0 {
		return d, false
	}
	udp := ip[header:total]
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp) != clientPort || binary.BigEndian.Uint16(udp[2:]) != serverPort || n < packet.UDPLen || n > len(udp) {
		return d, false
	}
	d.payload = udp[packet.UDPLen:n]
	return d, true
}

// frame returns a frame with a DHCP message from the network's address Service to a client.
func (n *Network) frame(ethDst [6]byte, dst netip.Addr, payload []byte) []byte {
	from, to := n.Service.As4(), dst.As4()
	pseudo := packet.SumIPv4(binary.BigEndian.Uint32(from[:]), binary.BigEndian.Uint32(to[:]), packet.ProtoUDP, packet.UDPLen+len(payload))
	body := udpDatagram(serverPort, clientPort, pseudo, payload)
	b := n.ethernet(ethDst, packet.EtherTypeIPv4, packet.IPv4Len, len(body))
	ip := b[packet.EthernetLen:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(packet.IPv4Len+len(body)))
	ip[8], ip[9] = answerTTL, packet.ProtoUDP
	copy(ip[12:], from[:])
	copy(ip[16:], to[:])
	binary.BigEndian.PutUint16(ip[10:], packet.Checksum(ip))
	return append(b, body...)
}

// ethernet returns a frame with an Ethernet header from the service's MAC address and headerBytes zeros for
// an IP header. The frame has room for bodyBytes more.
func (n *Network) ethernet(ethDst [6]byte, etherType uint16, headerBytes, bodyBytes int) []byte {
	b := make([]byte, packet.EthernetLen+headerBytes, packet.EthernetLen+headerBytes+bodyBytes)
	copy(b, ethDst[:])
	copy(b[6:], n.ServiceMAC[:])
	binary.BigEndian.PutUint16(b[12:], etherType)
	return b
}

// udpDatagram returns a UDP datagram with its checksum. pseudoSum is the sum of its pseudo header. A checksum
// of 0 becomes 0xffff, because 0 means no checksum in IPv4 (RFC 768) and is forbidden in IPv6 (RFC 8200
// section 8.1).
func udpDatagram(srcPort, dstPort, pseudoSum uint16, payload []byte) []byte {
	udp := make([]byte, packet.UDPLen, packet.UDPLen+len(payload))
	binary.BigEndian.PutUint16(udp, srcPort)
	binary.BigEndian.PutUint16(udp[2:], dstPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(packet.UDPLen+len(payload)))
	udp = append(udp, payload...)
	sum := ^packet.AddSums(packet.Sum(udp), pseudoSum)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return udp
}
