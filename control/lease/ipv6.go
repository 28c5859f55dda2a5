// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/ndp"

	"weft/packet"
)

const (
	serverPort6  = 547
	clientPort6  = 546
	ndHopLimit   = 255 // RFC 4861 section 6.1.1
	solicitation = 133
	allNodes     = "ff02::1"
)

// AdvertiseMode says how guests configure their IPv6 addresses.
type AdvertiseMode uint8

const (
	// AdvertiseNothing leaves router solicitations unanswered.
	AdvertiseNothing AdvertiseMode = iota
	// AdvertiseStateful tells guests to ask DHCPv6 for addresses and settings.
	AdvertiseStateful
	// AdvertiseStateless tells guests to make their addresses from the subnets, and to ask DHCPv6 for
	// settings.
	AdvertiseStateless
	// AdvertiseSLAAC tells guests to make their addresses from the subnets.
	AdvertiseSLAAC
)

// ipv6 answers a router solicitation or a message of DHCPv6. It ignores messages with extension
// headers, because hosts send neither kind with one.
func (p *Port) ipv6(frame []byte) ([]byte, Result) {
	if len(frame) < packet.EthernetLen+packet.IPv6Len || len(frame) > MaxRequest {
		return nil, Ignored
	}
	header := frame[packet.EthernetLen:]
	n := int(binary.BigEndian.Uint16(header[4:]))
	src := netip.AddrFrom16([16]byte(header[8:]))
	if header[0]>>4 != 6 || n > len(header)-packet.IPv6Len {
		return nil, Ignored
	}
	switch body := header[packet.IPv6Len:][:n]; {
	case header[6] == packet.ProtoICMPv6 && header[7] == ndHopLimit && n > 0 && body[0] == solicitation:
		return p.advertise(src, body)
	case header[6] == packet.ProtoUDP && n >= packet.UDPLen && src.IsLinkLocalUnicast() && binary.BigEndian.Uint16(body) == clientPort6 && binary.BigEndian.Uint16(body[2:]) == serverPort6:
		if length := int(binary.BigEndian.Uint16(body[4:])); length >= packet.UDPLen && length <= n {
			return p.dhcpv6(src, body[packet.UDPLen:length])
		}
	}
	return nil, Ignored
}

// advertise answers a router solicitation. The host is no router, so the router's lifetime is 0 and guests
// do not use it as one. Prefixes and name servers are valid for ever, because nothing is sent without a
// solicitation.
func (p *Port) advertise(src netip.Addr, body []byte) ([]byte, Result) {
	n := p.Network
	m, err := ndp.ParseMessage(body)
	if _, ok := m.(*ndp.RouterSolicitation); err != nil || !ok || n.Advertise == AdvertiseNothing {
		return nil, Ignored
	}
	a := &ndp.RouterAdvertisement{CurrentHopLimit: answerTTL, ManagedConfiguration: n.Advertise == AdvertiseStateful,
		OtherConfiguration: n.Advertise == AdvertiseStateful || n.Advertise == AdvertiseStateless,
		Options:            []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: n.ServiceMAC[:]}}}
	if n.MTU != 0 {
		a.Options = append(a.Options, ndp.NewMTU(uint32(n.MTU)))
	}
	for _, s := range n.Subnets {
		if s.Addr().Is6() {
			a.Options = append(a.Options, &ndp.PrefixInformation{PrefixLength: uint8(s.Bits()), OnLink: true, Prefix: s.Addr(),
				AutonomousAddressConfiguration: n.Advertise != AdvertiseStateful, ValidLifetime: ndp.Infinity, PreferredLifetime: ndp.Infinity})
		}
	}
	var servers []netip.Addr
	for _, s := range n.DNS {
		if s.Is6() {
			servers = append(servers, s)
		}
	}
	if len(servers) > 0 {
		a.Options = append(a.Options, &ndp.RecursiveDNSServer{Lifetime: ndp.Infinity, Servers: servers})
	}
	if n.Domain != "" {
		a.Options = append(a.Options, &ndp.DNSSearchList{Lifetime: ndp.Infinity, DomainNames: []string{n.Domain}})
	}
	dst := src
	if !src.IsLinkLocalUnicast() {
		dst = netip.MustParseAddr(allNodes)
	}
	message, err := ndp.MarshalMessageChecksum(a, n.linkLocal(), dst)
	if err != nil {
		return nil, Ignored
	}
	return n.packet6(p.MAC, dst, packet.ProtoICMPv6, ndHopLimit, message), Answered
}

// linkLocal returns the address from which the host answers: the one that follows from ServiceMAC (RFC 4291
// appendix A).
func (n *Network) linkLocal() netip.Addr {
	m := n.ServiceMAC
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// datagram6 returns a frame from the host's DHCPv6 server to a client.
func (n *Network) datagram6(ethDst [6]byte, dst netip.Addr, payload []byte) []byte {
	from, to := n.linkLocal().As16(), dst.As16()
	pseudo := packet.SumIPv6(from[:], to[:], packet.ProtoUDP, packet.UDPLen+len(payload))
	return n.packet6(ethDst, dst, packet.ProtoUDP, answerTTL, udpDatagram(serverPort6, clientPort6, pseudo, payload))
}

// packet6 returns a frame with an IPv6 packet from the host's link-local address.
func (n *Network) packet6(ethDst [6]byte, dst netip.Addr, proto, hopLimit uint8, body []byte) []byte {
	b := n.ethernet(ethDst, packet.EtherTypeIPv6, packet.IPv6Len, len(body))
	header := b[packet.EthernetLen:]
	header[0] = 0x60
	binary.BigEndian.PutUint16(header[4:], uint16(len(body)))
	header[6], header[7] = proto, hopLimit
	from, to := n.linkLocal().As16(), dst.As16()
	copy(header[8:], from[:])
	copy(header[24:], to[:])
	return append(b, body...)
}
