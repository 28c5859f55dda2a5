// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"weft/api"
)

// bondPort returns the port of type=bond that stands for a row in Port with several interfaces.
// names has the names that are taken.
func bondPort(t tables, bridge string, id uuid, names map[string]bool) port {
	r := t["Port"][id]
	p := port{id: id, table: "Port", name: r.text("name"), bridge: bridge}
	mode, lacp := cmp.Or(r.text("bond_mode"), "active-backup"), cmp.Or(r.text("lacp"), "off")
	switch {
	case lacp != "off":
		p.problem = fmt.Sprintf("lacp=%s of port %s: there is no LACP; expected off", lacp, p.name)
	case mode == "balance-tcp":
		p.problem = fmt.Sprintf("bond_mode=balance-tcp of port %s needs LACP, which there is not; expected active-backup or balance-slb", p.name)
	case names[p.name] || slices.ContainsFunc(r.refs("interfaces"), func(i uuid) bool { return t["Interface"][i].text("name") == p.name }):
		p.problem = fmt.Sprintf("another port has the name %s of the bond; expected another", p.name)
	}
	names[p.name] = true
	p.words = append([]string{"type=bond", "bridge=" + bridge, "bond_mode=" + mode}, vlanWords(r)...)
	for _, column := range []string{"bond_updelay", "bond_downdelay"} {
		if n, ok := r.number(column); ok && n > 0 {
			p.words = append(p.words, fmt.Sprintf("%s=%d", column, n))
		}
	}
	if primary := r.get("other_config", "bond-primary"); primary != "" {
		p.words = append(p.words, "bond_primary="+primary)
	}
	slices.Sort(p.words)
	return p
}

// memberWords turns the words of an interface into those of a member of a bond, or returns why it
// cannot be one.
func memberWords(words []string, b *port) (member []string, problem string) {
	if b.problem != "" {
		return nil, b.problem
	}
	if kind := option(words, "type"); kind != "device" && kind != "tap" {
		return nil, fmt.Sprintf("a port of %s cannot be in bond %s; expected a device of the host", kind, b.name)
	}
	return append(words, "bond="+b.name), ""
}

// bondColumns returns the columns of Port that the switch writes for a bond.
func bondColumns(p *api.Port, present map[string]*api.Port, devices map[string]device) map[string]value {
	mac := ""
	if p != nil && p.Bond != nil && p.Bond.Active != "" {
		if active := present[p.Bond.Active]; active != nil {
			mac = devices[cmp.Or(active.Options["dev"], active.Name)].mac
		}
	}
	return map[string]value{"bond_active_slave": optional(strings.ToLower(mac))}
}
