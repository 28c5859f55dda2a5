// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Limits of an Addressing. Within them, one DHCP answer has room for all settings.
const (
	MaxSubnets = 16
	MaxRouters = 8
	MaxDNS     = 8
	MaxRoutes  = 16
	// MaxDomain is the longest domain name in characters: RFC 1035 section 2.3.4 allows 255
	// bytes on the wire, which have two more than the text.
	MaxDomain = 253
	maxLabel  = 63
	// MinLease and MaxLease limit the lease in seconds. Clients renew a lease after half of it. A lease
	// below a minute would cost the hosts much work. 0xffffffff means for ever (RFC 2131 section 3.3).
	MinLease = 60
	MaxLease = 1<<32 - 1
	// Values of Addressing.advertise, the mode of router advertisements.
	Stateful  = "dhcpv6-stateful"
	Stateless = "dhcpv6-stateless"
	SLAAC     = "slaac"
	// DefaultLease is the lease in seconds if none is declared.
	DefaultLease = 86400
)

// Problem returns what is wrong with the settings, or "" if they are right. The text begins with the
// key of the wrong setting, such as subnets.
func (a *Addressing) Problem() string {
	if a == nil {
		return ""
	}
	for _, check := range []func() string{a.wrongSubnets, a.wrongLists, a.wrongService, a.wrongRoutes} {
		if problem := check(); problem != "" {
			return problem
		}
	}
	if a.GetLeaseS() != 0 && a.GetLeaseS() < MinLease {
		return fmt.Sprintf("lease %d: expected a number from %d to %d, in seconds", a.GetLeaseS(), MinLease, uint32(MaxLease))
	}
	if problem := WrongDomain(a.GetDomain()); problem != "" {
		return "domain " + problem
	}
	if problem := a.wrongAdvertise(); problem != "" {
		return problem
	}
	return a.wrongDHCP()
}

// HasSubnet reports whether one of the subnets is of IPv6 if ipv6 is true, of IPv4 otherwise.
func (a *Addressing) HasSubnet(ipv6 bool) bool {
	return slices.ContainsFunc(a.GetSubnets(), func(p *Prefix) bool { return p.Prefix().Addr().Is6() == ipv6 })
}

func (a *Addressing) wrongAdvertise() string {
	mode := a.GetAdvertise()
	switch {
	case mode == "":
		return ""
	case mode != Stateful && mode != Stateless && mode != SLAAC:
		return fmt.Sprintf("ra %q: expected %s, %s or %s", mode, Stateful, Stateless, SLAAC)
	case !a.HasSubnet(true):
		return fmt.Sprintf("ra=%s without an IPv6 prefix in subnets=: declare one, as in fd00::/64", mode)
	case mode != SLAAC && !a.GetDhcp():
		return fmt.Sprintf("ra=%s without dhcp=on: guests would ask nobody; expected ra=%s or dhcp=on", mode, SLAAC)
	}
	for _, p := range a.GetSubnets() {
		if prefix := p.Prefix(); mode != Stateful && prefix.Addr().Is6() && prefix.Bits() != 64 {
			return fmt.Sprintf("ra=%s with %s: guests make addresses only in a prefix of 64 bits", mode, prefix)
		}
	}
	return ""
}

func (a *Addressing) wrongSubnets() string {
	if n := len(a.GetSubnets()); n > MaxSubnets {
		return fmt.Sprintf("subnets: %d of them; expected at most %d", n, MaxSubnets)
	}
	var prefixes []netip.Prefix
	for _, p := range a.GetSubnets() {
		prefix, problem := p.check()
		if problem != "" {
			return "subnets: " + problem
		}
		for _, q := range prefixes {
			if q.Overlaps(prefix) {
				return fmt.Sprintf("subnets: %s overlaps %s; declare one of them", prefix, q)
			}
		}
		prefixes = append(prefixes, prefix)
	}
	return ""
}

// Prefix converts the message to a netip.Prefix. The result is not valid if the message's address has a
// wrong length.
func (p *Prefix) Prefix() netip.Prefix {
	a, _ := netip.AddrFromSlice(p.GetAddress())
	return netip.PrefixFrom(a, int(min(p.GetBits(), 255)))
}

func (p *Prefix) check() (netip.Prefix, string) {
	prefix := p.Prefix()
	switch {
	case !prefix.IsValid():
		return prefix, fmt.Sprintf("%d bytes /%d: expected a prefix of IPv4 or IPv6", len(p.GetAddress()), p.GetBits())
	case prefix.Addr().Is4In6():
		return prefix, fmt.Sprintf("%s: expected an IPv4 prefix in its own form, as in 10.0.0.0/24", prefix)
	case prefix != prefix.Masked():
		return prefix, fmt.Sprintf("%s: expected the prefix without an address, as in %s", prefix, prefix.Masked())
	}
	return prefix, ""
}

// machine decodes an IP address from b, in network byte order. It returns a problem if the address
// cannot belong to one machine.
func machine(b []byte) (netip.Addr, string) {
	addr, ok := netip.AddrFromSlice(b)
	switch {
	case !ok:
		return addr, fmt.Sprintf("%d bytes; expected 4 (IPv4) or 16 (IPv6)", len(b))
	case addr.Is4In6(), addr.IsUnspecified(), addr.IsMulticast(), addr.IsLoopback(), addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return addr, fmt.Sprintf("%s: expected the address of one machine", addr)
	}
	return addr, ""
}

func (a *Addressing) wrongLists() string {
	for _, list := range []struct {
		word      string
		addresses [][]byte
		limit     int
	}{{"routers", a.GetRouters(), MaxRouters}, {"dns", a.GetDns(), MaxDNS}} {
		if n := len(list.addresses); n > list.limit {
			return fmt.Sprintf("%s: %d of them; expected at most %d", list.word, n, list.limit)
		}
		var known []netip.Addr
		for _, b := range list.addresses {
			addr, problem := machine(b)
			switch {
			case problem != "":
				return list.word + ": " + problem
			case slices.Contains(known, addr):
				return fmt.Sprintf("%s: %s is there twice; give it once", list.word, addr)
			case list.word == "routers" && addr.Is4() && !a.Contains(addr):
				return fmt.Sprintf("routers: %s is in none of the subnets; declare its prefix in subnets=", addr)
			}
			known = append(known, addr)
		}
	}
	return ""
}

// Contains reports whether an address is in one of the subnets.
func (a *Addressing) Contains(addr netip.Addr) bool {
	return slices.ContainsFunc(a.GetSubnets(), func(p *Prefix) bool { return p.Prefix().Contains(addr) })
}

func (a *Addressing) wrongService() string {
	var known []netip.Addr
	for _, b := range a.GetService() {
		addr, problem := machine(b)
		switch {
		case problem != "":
			return "service: " + problem
		case slices.ContainsFunc(known, func(k netip.Addr) bool { return k.Is4() == addr.Is4() }):
			return fmt.Sprintf("service: %s is the second of its kind; expected at most one of IPv4 and one of IPv6", addr)
		case !a.Contains(addr):
			return fmt.Sprintf("service: %s is in none of the subnets; expected a free address of one of them", addr)
		}
		known = append(known, addr)
	}
	return ""
}

func (a *Addressing) wrongRoutes() string {
	if n := len(a.GetRoutes()); n > MaxRoutes {
		return fmt.Sprintf("routes: %d of them; expected at most %d", n, MaxRoutes)
	}
	for i, r := range a.GetRoutes() {
		to, problem := r.GetTo().check()
		if problem != "" {
			return "routes: " + problem
		}
		via, problem := machine(r.GetVia())
		switch {
		case problem != "":
			return "routes: " + problem
		case !to.Addr().Is4() || !via.Is4():
			return fmt.Sprintf("routes: %s@%s: expected IPv4; IPv6 routes come from routers", to, via)
		case !a.Contains(via):
			return fmt.Sprintf("routes: %s@%s: %s is in none of the subnets; expected a router of the network", to, via, via)
		}
		for _, before := range a.GetRoutes()[:i] {
			if before.GetTo().Prefix() == to {
				return fmt.Sprintf("routes: %s is there twice; give it once", to)
			}
		}
	}
	return ""
}

func (a *Addressing) wrongDHCP() string {
	if !a.GetDhcp() || a.HasSubnet(true) && !a.HasSubnet(false) {
		return ""
	}
	for _, b := range a.GetService() {
		if len(b) == 4 {
			return ""
		}
	}
	return "dhcp=on without an IPv4 address in service=: name a free address of the subnets, at which each host answers"
}

// WrongDomain returns why text is not a valid domain name, or "" if it is. The empty text is valid and
// means that there is no domain.
func WrongDomain(text string) string {
	if text == "" {
		return ""
	}
	const expected = "expected a name such as blue.example: labels of letters, digits and hyphens, with dots between them"
	if len(text) > MaxDomain {
		return fmt.Sprintf("%.16s... has %d characters; expected at most %d", text, len(text), MaxDomain)
	}
	for label := range strings.SplitSeq(text, ".") {
		if !IsLabel(label) {
			return fmt.Sprintf("%q: %s", text, expected)
		}
	}
	return ""
}

// IsLabel reports whether text is one label of a host's name (RFC 1123 section 2.1).
func IsLabel(text string) bool {
	if text == "" || len(text) > maxLabel || text[0] == '-' || text[len(text)-1] == '-' {
		return false
	}
	return !strings.ContainsFunc(text, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-')
	})
}
