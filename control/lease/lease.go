// SPDX-License-Identifier: Apache-2.0

// Package lease answers the requests of guests for addresses, from what weft-central declares.
//
//	lease.go    the declaration of a port, and the answer to a frame of its guest
//	dhcpv4.go   DHCP (RFC 2131)
//	frame.go    the headers of a request and of an answer
//	ipv6.go     router advertisements (RFC 4861), and the headers of IPv6
//	dhcpv6.go   DHCPv6 (RFC 8415)
//	table.go    the declarations by port, the limit of each port, and counters
//
// An answer is a function of the request and of the declaration of the port: the host keeps no lease,
// because the address of a port is declared, and nobody else may have it. So every host answers
// alike, before and after a restart, and without a connection to weft-central. Time matters only for
// the limit of a port.
package lease

import (
	"encoding/binary"
	"net/netip"
	"time"

	"weft/packet"
)

// Network has the settings that the host tells the guests of a network by DHCP and router advertisements.
// It is immutable.
type Network struct {
	Subnets []netip.Prefix
	// Routers are default routers and DNS name servers, the preferred one first.
	Routers, DNS []netip.Addr
	Routes       []Route // of IPv4, besides the default routers
	Domain       string
	MTU          uint16     // largest IP packet in bytes; 0: guests are not told
	Service      netip.Addr // IPv4 address at which the host answers; invalid: no DHCP
	ServiceMAC   [6]byte
	Lease        time.Duration
	DHCPv6       bool
	Advertise    AdvertiseMode
}

// Route is a static route that guests are told. It leads through a router of the network.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// Port is the declaration of the port of one guest. It is immutable.
type Port struct {
	MAC       [6]byte
	Addresses []netip.Addr
	Host      string // name of the guest, one label; "": none
	Network   *Network
}

// Result says what became of a request.
type Result uint8

// Results of a request.
const (
	Answered Result = iota // with addresses or settings
	Refused                // the guest asked for an address that it does not have (DHCPNAK, NotOnLink)
	Taken                  // the guest releases or declines an address, which changes nothing
	Ignored                // no valid request of the port's own guest, or nothing is declared for it
	Limited                // the port has reached its limit, or the frame is too long
	results
)

// resultNames are the names of results in metrics.
var resultNames = [results]string{"answered", "refused", "taken", "ignored", "limited"}

// MaxRequest is the length in bytes of the longest frame that is taken as a request: an Ethernet
// header and the MTU of Ethernet.
const MaxRequest = 1514

// Answer returns the frame that answers a frame of the port's guest; nil: no answer.
func Answer(p *Port, frame []byte) (answer []byte, result Result) {
	if p == nil || p.Network == nil || len(frame) < packet.EthernetLen {
		return nil, Ignored
	}
	if binary.BigEndian.Uint16(frame[12:]) == packet.EtherTypeIPv6 {
		if answer, result = p.ipv6(frame); len(answer) > MaxRequest { // the answer repeats identifiers of the request, which are too long
			return nil, Ignored
		}
		return answer, result
	}
	request, ok := parse(frame)
	if !ok {
		return nil, Ignored
	}
	return p.dhcpv4(&request)
}

// subnet returns the network's subnet that contains an address.
func (n *Network) subnet(addr netip.Addr) (netip.Prefix, bool) {
	for _, s := range n.Subnets {
		if s.Contains(addr) {
			return s, true
		}
	}
	return netip.Prefix{}, false
}
