// SPDX-License-Identifier: Apache-2.0

package declare

import (
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// Addressing has the IP settings of a network in the form for TOML files and JSON output. Hosts pass
// them on to their guests by DHCP and router advertisements.
type Addressing struct {
	// Subnets are the IP prefixes of the network. The bits after the prefix are zeros.
	Subnets []netip.Prefix `toml:"subnets,omitempty" json:"subnets,omitempty"`
	// Routers and DNS are default routers and name servers, the preferred one first.
	Routers []netip.Addr `toml:"routers,omitempty" json:"routers,omitempty"`
	DNS     []netip.Addr `toml:"dns,omitempty" json:"dns,omitempty"`
	Domain  string       `toml:"domain,omitempty" json:"domain,omitempty"`
	// Service has at most one IPv4 and one IPv6 address. Each host uses them as its own towards its
	// guests, for example as the address of the DHCP server.
	Service []netip.Addr `toml:"service,omitempty" json:"service,omitempty"`
	DHCP    bool         `toml:"dhcp,omitempty" json:"dhcp,omitempty"`
	Lease   uint32       `toml:"lease,omitempty" json:"lease,omitempty"` // seconds; 0: a day
	Routes  []Route      `toml:"routes,omitempty" json:"routes,omitempty"`
	// RA is the mode of router advertisements: dhcpv6-stateful, dhcpv6-stateless or slaac; "": none.
	RA string `toml:"ra,omitempty" json:"ra,omitempty"`
}

// Route is a route that guests get besides the default routers. Its text is PREFIX@ROUTER.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

func (r Route) String() string { return r.To.String() + "@" + r.Via.String() }

// MarshalText implements encoding.TextMarshaler. The text is PREFIX@ROUTER.
func (r Route) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler for a text PREFIX@ROUTER.
func (r *Route) UnmarshalText(text []byte) error {
	to, via, found := strings.Cut(string(text), "@")
	var toErr, viaErr error
	r.To, toErr = netip.ParsePrefix(to)
	r.Via, viaErr = netip.ParseAddr(via)
	if !found || toErr != nil || viaErr != nil {
		return errorf("routes: %s: expected PREFIX@ROUTER, as in 10.1.0.0/16@10.0.0.9", quoted(string(text)))
	}
	return nil
}

// wire returns the settings as a protobuf message, or nil if nothing is set.
func (a *Addressing) wire() *wire.Addressing {
	w := &wire.Addressing{Routers: addressSlices(a.Routers), Dns: addressSlices(a.DNS), Domain: a.Domain, Service: addressSlices(a.Service),
		Dhcp: a.DHCP, LeaseS: a.Lease, Advertise: a.RA}
	for _, p := range a.Subnets {
		w.Subnets = append(w.Subnets, wirePrefix(p))
	}
	for _, r := range a.Routes {
		w.Routes = append(w.Routes, &wire.Route{To: wirePrefix(r.To), Via: r.Via.Unmap().AsSlice()})
	}
	return someAddressing(w)
}

// merge returns the settings as a message. It keeps those fields of oldSettings that a later version
// has written and that this version does not know.
func (a *Addressing) merge(oldSettings *wire.Addressing) *wire.Addressing {
	w := a.wire()
	unknown := oldSettings.ProtoReflect().GetUnknown()
	if len(unknown) == 0 {
		return w
	}
	if w == nil {
		w = &wire.Addressing{}
	}
	w.ProtoReflect().SetUnknown(unknown)
	return w
}

// someAddressing returns w, or nil if no setting in w is set. So a network whose settings were removed
// equals one that never had any.
func someAddressing(w *wire.Addressing) *wire.Addressing {
	if proto.Size(w) == 0 {
		return nil
	}
	return w
}

func wirePrefix(p netip.Prefix) *wire.Prefix {
	return &wire.Prefix{Address: p.Addr().AsSlice(), Bits: uint32(max(p.Bits(), 0))}
}

func addressSlices(list []netip.Addr) (encoded [][]byte) {
	for _, a := range list {
		encoded = append(encoded, a.Unmap().AsSlice())
	}
	return encoded
}

func addressingOf(w *wire.Addressing) Addressing {
	a := Addressing{Routers: machines(w.GetRouters()), DNS: machines(w.GetDns()), Domain: w.GetDomain(), Service: machines(w.GetService()),
		DHCP: w.GetDhcp(), Lease: w.GetLeaseS(), RA: w.GetAdvertise()}
	for _, p := range w.GetSubnets() {
		a.Subnets = append(a.Subnets, p.Prefix())
	}
	for _, r := range w.GetRoutes() {
		via, _ := netip.AddrFromSlice(r.GetVia())
		a.Routes = append(a.Routes, Route{r.GetTo().Prefix(), via})
	}
	return a
}

func machines(list [][]byte) (decoded []netip.Addr) {
	for _, b := range list {
		a, _ := netip.AddrFromSlice(b) // an invalid address prints as "invalid IP"
		decoded = append(decoded, a)
	}
	return decoded
}

func (a *Addressing) check() error {
	if problem := a.wire().Problem(); problem != "" {
		return errorf("%s", problem)
	}
	return nil
}

func (a *Addressing) words() (list []word) {
	add := func(key, value string) {
		if value != "" {
			list = append(list, word{key, value})
		}
	}
	add("subnets", joined(a.Subnets))
	add("routers", joined(a.Routers))
	add("dns", joined(a.DNS))
	add("domain", a.Domain)
	add("service", joined(a.Service))
	if a.DHCP {
		add("dhcp", "on")
	}
	if a.Lease != 0 {
		add("lease", strconv.FormatUint(uint64(a.Lease), 10))
	}
	add("routes", joined(a.Routes))
	add("ra", a.RA)
	return list
}

func joined[T interface{ String() string }](list []T) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = v.String()
	}
	return strings.Join(texts, ",")
}

// settings returns the keys that a network's KEY=VALUE words may have for IP settings. Each has a
// function that stores the value in a.
func (a *Addressing) settings() []setting {
	addresses := func(key string, dst *[]netip.Addr) setting {
		return setting{key, func(v string) error {
			list, err := split(v, func(t string) (netip.Addr, error) { return parseAddress(key+":", t) })
			*dst = list
			return err
		}}
	}
	return []setting{
		{"subnets", func(v string) (err error) {
			a.Subnets, err = split(v, func(t string) (netip.Prefix, error) {
				p, err := netip.ParsePrefix(t)
				if err != nil {
					return p, errorf("subnets: %s: expected a prefix, as in 10.0.0.0/24 or fd00::/64", quoted(t))
				}
				return p, nil
			})
			return err
		}},
		addresses("routers", &a.Routers), addresses("dns", &a.DNS),
		{"domain", func(v string) error { a.Domain = v; return nil }},
		addresses("service", &a.Service),
		{"ra", func(v string) error { a.RA = v; return nil }},
		{"dhcp", func(v string) (err error) { a.DHCP, err = truth("dhcp", v); return err }},
		{"lease", func(v string) (err error) {
			if a.Lease = 0; v != "" {
				a.Lease, err = number("lease", v, wire.MinLease, wire.MaxLease)
			}
			return err
		}},
		{"routes", func(v string) (err error) {
			a.Routes, err = split(v, func(t string) (r Route, err error) { err = r.UnmarshalText([]byte(t)); return r, err })
			return err
		}},
	}
}

// split parses a comma-separated list. "" is an empty list.
func split[T any](text string, parse func(string) (T, error)) (list []T, err error) {
	if text == "" {
		return nil, nil
	}
	for t := range strings.SplitSeq(text, ",") {
		v, err := parse(t)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// checkService returns an error if a port has a service address of its network.
func (f *Fleet) checkService() error {
	type key struct {
		net  string
		addr string
	}
	owner := map[key]string{}
	for _, n := range f.Nets.All {
		for _, b := range n.GetAddressing().GetService() {
			owner[key{n.GetId(), string(b)}] = n.GetName()
		}
	}
	if len(owner) == 0 {
		return nil
	}
	for _, p := range f.Ports.All {
		for _, b := range p.GetAddresses() {
			if net, taken := owner[key{p.GetNet(), string(b)}]; taken {
				a, _ := netip.AddrFromSlice(b)
				return errorf("port %s: address %s is the service address of net %s; choose another", p.GetName(), a, net)
			}
		}
	}
	return nil
}
