// SPDX-License-Identifier: Apache-2.0

package declare

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weft/central/wire"
)

// Net is a declared network, in the form for TOML files and JSON output.
type Net struct {
	Name string `toml:"name" json:"name"`
	ID   string `toml:"id,omitempty" json:"id,omitempty"`
	VNI  uint32 `toml:"vni" json:"vni"`
	// largest IP packet in bytes; 0: the underlay's MTU minus the encapsulation
	MTU   uint32 `toml:"mtu,omitempty" json:"mtu,omitempty"`
	Flood bool   `toml:"flood,omitempty" json:"flood"`
	Addressing
}

// Host is a declared host, in the form for TOML files and JSON output.
type Host struct {
	Name     string     `toml:"name" json:"name"`
	ID       string     `toml:"id,omitempty" json:"id,omitempty"`
	Endpoint netip.Addr `toml:"endpoint" json:"endpoint"`
}

// Port is a declared port, in the form for TOML files and JSON output. Its fields Net, Host and MoveTo
// are names. In input they may also be ids.
type Port struct {
	Name      string       `toml:"name" json:"name"`
	ID        string       `toml:"id,omitempty" json:"id,omitempty"`
	Net       string       `toml:"net" json:"net"`
	MAC       MAC          `toml:"mac" json:"mac"`
	Addresses []netip.Addr `toml:"addresses,omitempty" json:"addresses"`
	Host      string       `toml:"host,omitempty" json:"host,omitempty"`
	MoveTo    string       `toml:"move-to,omitempty" json:"move_to,omitempty"`
	Groups    []string     `toml:"groups,omitempty" json:"groups,omitempty"` // names, as Net
	// SpoofCheck drops frames of the port with other sender addresses than the declared
	// ones. nil means true.
	SpoofCheck *bool `toml:"spoof-check,omitempty" json:"spoof_check,omitempty"`
}

// MAC is a MAC address such as 02:00:00:00:00:01.
type MAC [6]byte

// parseMAC parses a unicast MAC address.
func parseMAC(text string) (MAC, error) {
	m, err := net.ParseMAC(text)
	switch {
	case err != nil || len(m) != 6:
		return MAC{}, errorf("mac %s: expected six bytes, as in 02:00:00:00:00:01", quoted(text))
	case m[0]&1 != 0 || MAC(m) == MAC{}:
		return MAC{}, errorf("mac %s: expected a unicast address", m)
	}
	return MAC(m), nil
}

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText implements encoding.TextMarshaler. The text is like 02:00:00:00:00:01.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. Only a unicast address is accepted.
func (m *MAC) UnmarshalText(text []byte) (err error) {
	*m, err = parseMAC(string(text))
	return err
}

// parseAddress parses the IP address of a single machine.
func parseAddress(key, text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return a, errorf("%s %s: expected an IP address without a prefix length, as in 10.0.0.1 or fd00::1", key, quoted(text))
	}
	a = a.Unmap()
	return a, checkAddress(key, a)
}

func checkAddress(key string, a netip.Addr) error {
	if !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return errorf("%s %s: expected the address of one machine", key, a)
	}
	return nil
}

// word is one property of an object, written as KEY=VALUE.
type word struct{ key, value string }

func (n *Net) words() []word {
	list := []word{{"vni", strconv.FormatUint(uint64(n.VNI), 10)}}
	if n.MTU != 0 {
		list = append(list, word{"mtu", strconv.FormatUint(uint64(n.MTU), 10)})
	}
	if n.Flood {
		list = append(list, word{"flood", "on"})
	}
	return append(list, n.Addressing.words()...)
}

func (h *Host) words() []word { return []word{{"endpoint", h.Endpoint.String()}} }

func (p *Port) words() []word {
	list := []word{{"net", p.Net}, {"mac", p.MAC.String()}}
	if len(p.Addresses) > 0 {
		list = append(list, word{"addresses", p.AddressText()})
	}
	if p.Host != "" {
		list = append(list, word{"host", p.Host})
	}
	if p.MoveTo != "" {
		list = append(list, word{"move-to", p.MoveTo})
	}
	if !p.Checked() {
		list = append(list, word{"spoof-check", "off"})
	}
	if len(p.Groups) > 0 {
		list = append(list, word{"groups", strings.Join(p.Groups, ",")})
	}
	return list
}

// Text returns the network as words KEY=VALUE.
func (n *Net) Text() string { return text(n.words()) }

// Text returns the port as words KEY=VALUE.
func (p *Port) Text() string { return text(p.words()) }

func text(words []word) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = w.key + "=" + w.value
	}
	return strings.Join(texts, " ")
}

// Checked reports whether the port may send only from its declared addresses.
func (p *Port) Checked() bool { return p.SpoofCheck == nil || *p.SpoofCheck }

// AddressText returns the port's IP addresses, separated by commas.
func (p *Port) AddressText() string {
	texts := make([]string, len(p.Addresses))
	for i, a := range p.Addresses {
		texts[i] = a.String()
	}
	return strings.Join(texts, ",")
}

// NetOf converts a protobuf message to a Net.
func NetOf(n *wire.Net) Net {
	return Net{Name: n.GetName(), ID: n.GetId(), VNI: n.GetVni(), MTU: n.GetMtu(), Flood: n.GetFlood(), Addressing: addressingOf(n.GetAddressing())}
}

// HostOf converts a protobuf message to a Host.
func HostOf(h *wire.Host) Host {
	a, _ := netip.AddrFromSlice(h.GetEndpoint()) // an invalid address prints as "invalid IP"
	return Host{Name: h.GetName(), ID: h.GetId(), Endpoint: a}
}

// PortOf converts a protobuf message to a Port, with names of network, hosts and groups in place of
// ids.
func (f *Fleet) PortOf(p *wire.Port) Port {
	checked := !p.GetUnchecked()
	port := Port{Name: p.GetName(), ID: p.GetId(), Net: f.Nets.name(p.GetNet()), Host: f.Hosts.name(p.GetHost()),
		MoveTo: f.Hosts.name(p.GetMoveTo()), SpoofCheck: &checked, Addresses: []netip.Addr{}, Groups: f.groupNames(p.GetGroups())}
	copy(port.MAC[:], p.GetMac())
	for _, b := range p.GetAddresses() {
		a, _ := netip.AddrFromSlice(b)
		port.Addresses = append(port.Addresses, a)
	}
	slices.SortFunc(port.Addresses, netip.Addr.Compare)
	return port
}

// sortAddresses sorts addresses, so that their order does not matter in comparisons.
func sortAddresses(list [][]byte) {
	slices.SortFunc(list, func(a, b []byte) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return bytes.Compare(a, b)
	})
}
