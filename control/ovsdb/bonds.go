// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"weft/api"
)

// bondPort returns the bond for a row in table Port that has several interfaces: a port of type=bond.
// names has the port names in use; bondPort adds the bond's name.
func bondPort(t tables, bridge string, id uuid, names map[string]bool) port {
	r := t["Port"][id]
	p := port{id: id, table: "Port", name: r.text("name"), bridge: bridge}
	mode, lacp := cmp.Or(r.text("bond_mode"), "active-backup"), cmp.Or(r.text("lacp"), "off")
	switch {
	case mode == "balance-tcp" && lacp == "off":
		p.problem = fmt.Sprintf("bond_mode=balance-tcp of port %s: the switch at the other end must know the bond; expected lacp=active or lacp=passive", p.name)
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
	if lacp != "off" {
		p.words = append(p.words, lacpWords(r, lacp)...)
	}
	slices.Sort(p.words)
	return p
}

// lacpWords returns the LACP options for a row in table Port. It leaves out values that Open vSwitch
// would ignore.
func lacpWords(r row, lacp string) []string {
	words := []string{"lacp=" + lacp}
	if r.get("other_config", "lacp-time") == "fast" {
		words = append(words, "lacp_time=fast")
	}
	if r.get("other_config", "lacp-fallback-ab") == "true" {
		words = append(words, "lacp_fallback_ab=on")
	}
	if mac, err := net.ParseMAC(r.get("other_config", "lacp-system-id")); err == nil && len(mac) == 6 && mac[0]&1 == 0 {
		words = append(words, "lacp_system_id="+mac.String())
	}
	return append(words, numberWords(r, "lacp-system-priority")...)
}

// numberWords returns an option for each of these keys of other_config whose value is a number from 1 to
// 65535.
func numberWords(r row, keys ...string) (words []string) {
	for _, key := range keys {
		if n, err := strconv.ParseUint(r.get("other_config", key), 10, 16); err == nil && n > 0 {
			words = append(words, fmt.Sprintf("%s=%d", strings.ReplaceAll(key, "-", "_"), n))
		}
	}
	return words
}

// memberWords returns the options for an interface that is a member of a bond: its own options, and
// those of a member. r is the interface's row. If the interface cannot be a member, memberWords
// returns the reason.
func memberWords(r row, words []string, b *port) (member []string, problem string) {
	if b.problem != "" {
		return nil, b.problem
	}
	kind, lacp := option(words, "type"), option(b.words, "lacp")
	if kind != "device" && (kind != "tap" || lacp != "") {
		return nil, fmt.Sprintf("a port of %s cannot be in bond %s; expected a device of the host", kind, b.name)
	}
	if words = append(words, "bond="+b.name); lacp != "" {
		words = append(words, numberWords(r, "lacp-port-id", "lacp-port-priority", "lacp-aggregation-key")...)
	}
	return words, ""
}

// lacpCurrent returns the value of Interface.lacp_current for a port, from the bond that it is a member
// of.
func lacpCurrent(p *api.Port, present map[string]*api.Port) value {
	b := present[p.Options["bond"]]
	if b == nil || b.Bond == nil {
		return none()
	}
	for _, m := range b.Bond.Members {
		if m.Name == p.Name && m.LACP != nil {
			return one(m.LACP.Status == "current")
		}
	}
	return none()
}

// bondColumns returns the columns that the switch writes into a bond's row in table Port.
func bondColumns(p *api.Port, present map[string]*api.Port, devices map[string]device) map[string]value {
	mac := ""
	if p != nil && p.Bond != nil && p.Bond.Active != "" {
		if active := present[p.Bond.Active]; active != nil {
			mac = devices[cmp.Or(active.Options["dev"], active.Name)].mac
		}
	}
	return map[string]value{"bond_active_slave": optional(strings.ToLower(mac))}
}
