// SPDX-License-Identifier: Apache-2.0

package declare

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weft/central/wire"
)

const (
	maxVNI = 1<<24 - 1 // RFC 7348 section 5: 24 bits
	// MTU of a network in bytes of an IP packet; RFC 791 requires 68
	minMTU, maxMTU = 68, 65535
	// maxAddresses limits the IP addresses of a port, as centrals do.
	maxAddresses = 64
)

// setting is a key that KEY=VALUE words may have. The function set parses the value and stores it in
// the object.
type setting struct {
	key string
	set func(value string) error
}

func apply(words []string, settings []setting) error {
	var names []string
	for _, s := range settings {
		names = append(names, s.key+"=")
	}
	seen := map[string]bool{}
	for _, w := range words {
		key, value, found := strings.Cut(w, "=")
		i := slices.IndexFunc(settings, func(s setting) bool { return s.key == key })
		switch {
		case !found:
			return errorf("%s: expected KEY=VALUE, one of %s", quoted(w), strings.Join(names, " "))
		case i < 0:
			return errorf("%s=: unknown key; expected one of %s", quoted(key), strings.Join(names, " "))
		case seen[key]:
			return errorf("%s=: expected once", key)
		}
		seen[key] = true
		if err := settings[i].set(value); err != nil {
			return err
		}
	}
	return nil
}

// SetNet applies words KEY=VALUE to a network. The word id= is allowed only for a
// network that is being created.
func (f *Fleet) SetNet(n *wire.Net, created bool, words []string) error {
	a := addressingOf(n.GetAddressing())
	err := apply(words, slices.Concat(naming(&n.Id, &n.Name, created), []setting{
		{"vni", func(v string) (err error) { n.Vni, err = number("vni", v, 1, maxVNI); return err }},
		{"mtu", func(v string) (err error) {
			if n.Mtu = 0; v != "" {
				n.Mtu, err = number("mtu", v, minMTU, maxMTU)
			}
			return err
		}},
		{"flood", func(v string) (err error) { n.Flood, err = truth("flood", v); return err }},
	}, a.settings()))
	if err != nil {
		return err
	}
	n.Addressing = a.merge(n.GetAddressing())
	return a.check()
}

// SetHost applies words KEY=VALUE to a host. The word id= is allowed only for a host
// that is being created.
func (f *Fleet) SetHost(h *wire.Host, created bool, words []string) error {
	return apply(words, append(naming(&h.Id, &h.Name, created),
		setting{"endpoint", func(v string) error {
			a, err := parseAddress("endpoint", v)
			h.Endpoint = a.AsSlice()
			return err
		}},
	))
}

// SetPort applies words KEY=VALUE to a port. The words may name networks and hosts by
// name or id.
func (f *Fleet) SetPort(p *wire.Port, created bool, words []string) error {
	host := func(key string, dst *string) setting {
		return setting{key, func(v string) error {
			if *dst = ""; v == "" {
				return nil
			}
			h, err := f.Hosts.Find(v)
			*dst = h.GetId()
			return err
		}}
	}
	err := apply(words, append(naming(&p.Id, &p.Name, created),
		setting{"net", func(v string) error {
			n, err := f.Nets.Find(v)
			p.Net = n.GetId()
			return err
		}},
		setting{"mac", func(v string) error {
			m, err := parseMAC(v)
			p.Mac = m[:]
			return err
		}},
		setting{"addresses", func(v string) (err error) { p.Addresses, err = parseAddresses(v); return err }},
		host("host", &p.Host), host("move-to", &p.MoveTo),
		setting{"spoof-check", func(v string) error {
			checked, err := truth("spoof-check", v)
			p.Unchecked = !checked
			return err
		}},
		setting{"groups", func(v string) (err error) {
			var names []string
			if v != "" {
				names = strings.Split(v, ",")
			}
			p.Groups, err = f.groupIDs(names)
			return err
		}},
	))
	if err == nil && p.MoveTo != "" && p.Host == "" {
		return errorf("port %s: move-to=%s without host=: name the present host too, or neither", p.Name, f.Hosts.name(p.MoveTo))
	}
	return err
}

func naming(id, name *string, created bool) []setting {
	if created {
		return []setting{{"id", func(v string) error { *id = v; return CheckName("id", v) }}}
	}
	return []setting{{"name", func(v string) error { *name = v; return CheckName("name", v) }}}
}

func number(key, text string, lo, hi uint32) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || uint32(n) < lo || uint32(n) > hi {
		return 0, errorf("%s=%s: expected a number from %d to %d", key, quoted(text), lo, hi)
	}
	return uint32(n), nil
}

func truth(key, text string) (bool, error) {
	if text != "on" && text != "off" {
		return false, errorf("%s=%s: expected on or off", key, quoted(text))
	}
	return text == "on", nil
}

// parseAddresses parses a comma-separated list of IP addresses. "" means no address.
func parseAddresses(text string) ([][]byte, error) {
	var list []netip.Addr
	if text != "" {
		for _, t := range strings.Split(text, ",") {
			a, err := parseAddress("addresses:", t)
			if err != nil {
				return nil, err
			}
			list = append(list, a)
		}
	}
	return addressBytes(list)
}

func addressBytes(list []netip.Addr) ([][]byte, error) {
	if len(list) > maxAddresses {
		return nil, errorf("addresses: %d of them; expected at most %d", len(list), maxAddresses)
	}
	var all [][]byte
	for i, a := range list {
		if slices.Contains(list[:i], a) {
			return nil, errorf("addresses: %s is there twice; give it once", a)
		}
		all = append(all, a.AsSlice())
	}
	sortAddresses(all)
	return all, nil
}

// ParseOVNAddresses converts the argument of ovn-nbctl lsp-set-addresses, "MAC IP...",
// to words for SetPort.
func ParseOVNAddresses(texts []string) (words []string, err error) {
	const what = `expected "MAC [IP...]"`
	if len(texts) != 1 {
		return nil, errorf("%d addresses; a port has one MAC address: %s", len(texts), what)
	}
	fields := strings.Fields(texts[0])
	switch {
	case len(fields) == 0:
		return nil, errorf("%s: %s", quoted(texts[0]), what)
	case fields[0] == "unknown":
		return nil, errorf("unknown: %s; a port that may use any address has spoof-check=off (weft port set)", what)
	case fields[0] == "dynamic" || fields[0] == "router":
		return nil, errorf("%s: %s; weft declares each address", fields[0], what)
	}
	return []string{"mac=" + fields[0], "addresses=" + strings.Join(fields[1:], ",")}, nil
}
