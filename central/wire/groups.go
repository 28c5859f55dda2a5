// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Protocols of IP that have ports or ICMP types in a GroupRule (IANA, "Protocol Numbers").
const (
	ProtocolICMP   = 1
	ProtocolTCP    = 6
	ProtocolUDP    = 17
	ProtocolICMPv6 = 58
	ProtocolSCTP   = 132
)

// HasPorts reports whether a GroupRule may name ports of the protocol.
func HasPorts(protocol uint32) bool {
	return slices.Contains([]uint32{ProtocolTCP, ProtocolUDP, ProtocolSCTP}, protocol)
}

// HasICMPType reports whether a GroupRule may name ICMP types of the protocol.
func HasICMPType(protocol uint32) bool { return protocol == ProtocolICMP || protocol == ProtocolICMPv6 }

// protocolNames has the names that rules may use for IP protocols. "any" stands for all protocols.
var protocolNames = map[string]uint32{"any": 0, "icmp": ProtocolICMP, "tcp": ProtocolTCP, "udp": ProtocolUDP,
	"icmp6": ProtocolICMPv6, "sctp": ProtocolSCTP}

// ProtocolName returns the name of an IP protocol in rules, or its number.
func ProtocolName(protocol uint32) string {
	for name, number := range protocolNames {
		if number == protocol {
			return name
		}
	}
	return strconv.FormatUint(uint64(protocol), 10)
}

// ParseProtocol is the inverse of ProtocolName.
func ParseProtocol(text string) (protocol uint32, ok bool) {
	if number, named := protocolNames[text]; named {
		return number, true
	}
	n, err := strconv.ParseUint(text, 10, 8)
	return uint32(n), err == nil && n > 0
}

// Text returns the rule in the form in which users write it. groupName returns the name of the group
// with an id.
func (r *GroupRule) Text(groupName func(id string) string) string {
	words, end := []string{"in", ProtocolName(r.GetProtocol())}, "from"
	if r.GetOut() {
		words[0], end = "out", "to"
	}
	var ports []string
	for _, p := range r.GetPorts() {
		text := strconv.Itoa(int(p.GetFirst()))
		if p.GetLast() != p.GetFirst() {
			text += "-" + strconv.Itoa(int(p.GetLast()))
		}
		ports = append(ports, text)
	}
	if len(ports) > 0 {
		words = append(words, strings.Join(ports, ","))
	}
	if r.IcmpType != nil {
		words = append(words, strconv.Itoa(int(r.GetIcmpType())))
	}
	switch {
	case r.GetGroup() != "":
		words = append(words, end, "group", groupName(r.GetGroup()))
	case len(r.GetPrefix()) > 0:
		a, _ := netip.AddrFromSlice(r.GetPrefix())
		words = append(words, end, netip.PrefixFrom(a, int(r.GetPrefixBits())).String())
	}
	return strings.Join(words, " ")
}
