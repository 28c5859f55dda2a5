// SPDX-License-Identifier: Apache-2.0

package appctl

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"weft/api"
	"weft/control/bond"
	"weft/control/unixctl"
	"weft/control/usererr"
)

// bondCommands returns the commands about bonds. Their words and answers are those of Open
// vSwitch 3.1.
func (c *commands) bondCommands() (list []unixctl.Command) {
	list = []unixctl.Command{
		{Name: "bond/list", Run: func([]string) (string, error) { return c.listBonds(), nil }},
		{Name: "bond/show", Usage: "[port]", Most: 1, Run: c.showBonds},
		{Name: "lacp/show", Usage: "[port]", Most: 1, Run: func(words []string) (string, error) { return c.showLACPs(words, showLACP) }},
		{Name: "lacp/show-stats", Usage: "[port]", Most: 1, Run: func(words []string) (string, error) { return c.showLACPs(words, showLACPStats) }},
		{Name: "bond/migrate", Usage: "port hash member", Least: 3, Most: 3, Changes: true, Run: c.migrate},
	}
	apply := func(verb, done string, change func(b *bond.Bond, number uint32) bool) {
		for _, noun := range []string{"member", "slave"} { // today's word, and the word of Open vSwitch before 2.14
			list = append(list, unixctl.Command{Name: "bond/" + verb + "-" + noun, Usage: "port member", Least: 2, Most: 2, Changes: true,
				Run: func(words []string) (string, error) {
					return done + "\n", c.Ports.ChangeBond(words[0], words[1], func(b *bond.Bond, number uint32) string {
						if !change(b, number) {
							return "the member is disabled; expected an enabled one"
						}
						return ""
					})
				}})
		}
	}
	apply("set-active", "done", func(b *bond.Bond, number uint32) bool { return b.SetActive(number) })
	apply("enable", "enabled", func(b *bond.Bond, number uint32) bool { return b.Enable(number, true) })
	apply("disable", "disabled", func(b *bond.Bond, number uint32) bool { return b.Enable(number, false) })
	return list
}

// bonds returns the ports that are bonds. Each bond's members are sorted by name, as Open
// vSwitch prints them.
func (c *commands) bonds() (list []api.Port) {
	ports, _ := c.Ports.List("") // fails for an unknown name only
	for _, p := range ports {
		if p.Bond != nil {
			slices.SortFunc(p.Bond.Members, func(a, b api.BondMember) int { return strings.Compare(a.Name, b.Name) })
			list = append(list, p)
		}
	}
	return list
}

func (c *commands) listBonds() string {
	var out strings.Builder
	out.WriteString("Bond\tType\tRecircID\tMembers\n")
	for _, p := range c.bonds() {
		var names []string
		for _, m := range p.Bond.Members {
			names = append(names, m.Name)
		}
		fmt.Fprintf(&out, "%s\t%s\t-1\t%s\n", p.Name, p.Bond.Mode, strings.Join(names, ", "))
	}
	return out.String()
}

func (c *commands) showBonds(words []string) (string, error) {
	var out strings.Builder
	found := false
	for _, p := range c.bonds() {
		if len(words) > 0 && p.Name != words[0] {
			continue
		}
		if found {
			out.WriteString("\n")
		}
		found = true
		c.showBond(&out, &p)
	}
	if len(words) > 0 && !found {
		return "", usererr.Errorf("no such bond")
	}
	return out.String(), nil
}

func (c *commands) showBond(out *strings.Builder, p *api.Port) {
	delay := func(key string) string {
		if v := p.Options[key]; v != "" {
			return v
		}
		return "0"
	}
	primary := p.Options["bond_primary"]
	if primary == "" {
		primary = "<none>"
	}
	fmt.Fprintf(out, "---- %s ----\nbond_mode: %s\nbond may use recirculation: no, Recirc-ID : -1\nbond-hash-basis: 0\nlb_output action: disabled, bond-id: -1\n",
		p.Name, p.Bond.Mode)
	status, fallback := "off", false
	if l := p.Bond.LACP; l != nil {
		status, fallback = map[bool]string{true: "negotiated", false: "configured"}[l.Negotiated], l.Fallback
	}
	fmt.Fprintf(out, "updelay: %s ms\ndowndelay: %s ms\nlacp_status: %s\nlacp_fallback_ab: %v\nactive-backup primary: %s\n",
		delay("bond_updelay"), delay("bond_downdelay"), status, fallback, primary)
	active := p.Bond.Active
	if active == "" {
		active = "none"
	}
	fmt.Fprintf(out, "active member mac: %s(%s)\n", c.macOfPort(p.Bond.Active), active)
	for _, m := range p.Bond.Members {
		state := "disabled"
		if m.Enabled {
			state = "enabled"
		}
		fmt.Fprintf(out, "\nmember %s: %s\n", m.Name, state)
		if m.Name == p.Bond.Active {
			out.WriteString("  active member\n")
		}
		if m.DelayMS > 0 {
			fmt.Fprintf(out, "  %s expires in %d ms\n", map[bool]string{true: "downdelay", false: "updelay"}[m.Enabled], m.DelayMS)
		}
		fmt.Fprintf(out, "  may_enable: %v\n", m.MayEnable)
	}
}

// showLACPs prints the LACP state of the bond named by words[0], or of all bonds if there are no words.
// The function show prints one bond in Open vSwitch's format.
func (c *commands) showLACPs(words []string, show func(out *strings.Builder, p *api.Port)) (string, error) {
	var out strings.Builder
	found := false
	for _, p := range c.bonds() {
		if p.Bond.LACP != nil && (len(words) == 0 || p.Name == words[0]) {
			found = true
			show(&out, &p)
		}
	}
	if len(words) > 0 && !found {
		return "", usererr.Errorf("no such lacp object")
	}
	return out.String(), nil
}

func showLACP(out *strings.Builder, p *api.Port) {
	l := p.Bond.LACP
	status, rate, key := "passive", "slow", "none"
	if l.Active {
		status = "active"
	}
	if l.Negotiated {
		status += " negotiated"
	}
	if l.Fast {
		rate = "fast"
	}
	for _, m := range p.Bond.Members {
		if m.LACP != nil && m.LACP.Attached {
			key = strconv.Itoa(int(m.LACP.Actor.Key))
			break
		}
	}
	fmt.Fprintf(out, "---- %s ----\n  status: %s\n  sys_id: %s\n  sys_priority: %d\n  aggregation key: %s\n  lacp_time: %s\n",
		p.Name, status, l.System, l.SystemPriority, key, rate)
	for _, m := range p.Bond.Members {
		if m.LACP == nil {
			continue
		}
		attached := "detached"
		if m.LACP.Attached {
			attached = "attached"
		}
		a := &m.LACP.Actor
		fmt.Fprintf(out, "\nmember: %s: %s %s\n  port_id: %d\n  port_priority: %d\n  may_enable: %v\n", m.Name, m.LACP.Status, attached,
			a.Port, a.PortPriority, m.MayEnable)
		showLACPEnd(out, "actor", a)
		showLACPEnd(out, "partner", &m.LACP.Partner)
	}
}

func showLACPEnd(out *strings.Builder, name string, e *api.LACPEnd) {
	fmt.Fprintf(out, "\n  %s sys_id: %s\n  %[1]s sys_priority: %[3]d\n  %[1]s port_id: %[4]d\n  %[1]s port_priority: %[5]d\n  %[1]s key: %[6]d\n  %[1]s state:",
		name, e.System, e.SystemPriority, e.Port, e.PortPriority, e.Key)
	for _, word := range e.State {
		out.WriteString(" " + word)
	}
	out.WriteString("\n")
}

func showLACPStats(out *strings.Builder, p *api.Port) {
	fmt.Fprintf(out, "---- %s statistics ----\n", p.Name)
	for _, m := range p.Bond.Members {
		if s := m.LACP; s != nil {
			fmt.Fprintf(out, "\nmember: %s:\n  TX PDUs: %d\n  RX PDUs: %d\n  RX Bad PDUs: %d\n  RX Marker Request PDUs: %d\n  Link Expired: %d\n"+
				"  Link Defaulted: %d\n  Carrier Status Changed: %d\n", m.Name, s.Sent, s.Received+s.Bad+s.Markers+s.Excess, s.Bad+s.Excess, s.Markers, s.Expired, s.Defaulted, s.Carrier)
		}
	}
}

// macOfPort returns the MAC address of a port's device, or zeros if the port has no device.
func (c *commands) macOfPort(name string) string {
	if list, err := c.Ports.List(name); err == nil && name != "" && len(list) == 1 {
		if nic, err := net.InterfaceByName(cmp.Or(list[0].Options["dev"], name)); err == nil {
			return nic.HardwareAddr.String()
		}
	}
	return "00:00:00:00:00:00"
}

func (c *commands) migrate(words []string) (string, error) {
	hash, err := strconv.ParseUint(words[1], 10, 8)
	if err != nil {
		return "", usererr.Errorf("bad hash")
	}
	return "migrated\n", c.Ports.ChangeBond(words[0], words[2], func(b *bond.Bond, number uint32) string {
		switch {
		case !b.Balances():
			return "not an SLB bond"
		case !b.Migrate(uint8(hash), number):
			return "cannot migrate to disabled member"
		}
		return ""
	})
}
