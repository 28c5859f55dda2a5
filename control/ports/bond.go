// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"weft/api"
	"weft/control/bond"
	"weft/control/change"
	"weft/control/loop"
	"weft/control/usererr"
	"weft/openflow/xlate"
)

// kindBond is the type of a bond. Its members are the ports of the same bridge with the option
// bond=NAME. A bond has no device. Package bond decides which members send. This file tells package
// bond which links are up, and stores the decision where the look-ups of frames find it.
const kindBond = "bond"

// bondOption names the bond that a port is a member of.
const bondOption = "bond"

var memberBond = option{check: peerBond}

// bondModes are the values of bond_mode=, in the order of package bond's modes.
var bondModes = []string{"active-backup", "balance-slb", balanceTCP}

const balanceTCP = "balance-tcp"

func init() {
	portKinds[kindBond] = portKind{
		kind: xlate.PortBond,
		options: optionTable{
			"bond_mode":      {value: bondModes[0], check: oneOf(bondModes...)},
			"bond_updelay":   {value: "0", check: numberIn(0, maxBondDelay)},
			"bond_downdelay": {value: "0", check: numberIn(0, maxBondDelay)},
			"bond_primary":   {check: peerBond},
		},
		make: func(portContext) portDriver { return &virtualPort{} },
	}
	maps.Copy(portKinds[kindBond].options, lacpOptions)
	changeable[kindBond] = slices.Sorted(maps.Keys(portKinds[kindBond].options))
}

const (
	maxBondDelay = 600_000 // milliseconds
	// absentBond is the bond number of a member whose bond does not exist. The member then forwards
	// nothing, because several forwarding ports to one switch form a loop.
	absentBond = ^uint32(0)
)

func peerBond(value string) string {
	if checkPortName(value) != nil {
		return "the name of a port"
	}
	return ""
}

// joinBonds stores the number of the bond in the PortInfo of each member, and the present state of
// the bond in the PortInfo of the bond. Look-ups of frames read both.
func (ps *Ports) joinBonds(*change.Tx) {
	states, speaking := map[string]*bond.Bond{}, map[uint32]bool{}
	for _, p := range ps.byNumber {
		if p.kind == kindBond {
			s := ps.bonds[p.saved.Name]
			if s == nil {
				s = new(bond.Bond)
			}
			states[p.saved.Name] = s
			if speaksLACP(p.values) {
				speaking[p.saved.Number] = true
			}
		}
	}
	ps.bonds = states
	ps.aggregations.retain(speaking)
	for _, p := range ps.byNumber {
		name := p.values[bondOption]
		if p.info.Bond, p.info.LACP, p.info.Standby = 0, false, false; name == "" || p.kind == kindBond {
			continue
		}
		p.info.Bond = absentBond
		if b := ps.portByName(name); b != nil && b.kind == kindBond && b.info.Bridge == p.info.Bridge {
			p.info.Bond, p.info.LACP = b.saved.Number, speaksLACP(b.values)
		}
	}
	for name := range states {
		ps.stepBond(ps.portByName(name))
	}
	if len(states) > 0 {
		loop.Notify(ps.watched)
	}
}

// stepBond tells package bond which members' links are up. If the bond has LACP, a link counts as up
// only if LACP lets the member carry frames. stepBond reports whether the sending members have
// changed.
func (ps *Ports) stepBond(p *switchPort) (changed bool) {
	s := ps.bonds[p.saved.Name]
	var links []bond.Link
	var members []slowMember
	config := bond.Config{Mode: bond.Mode(slices.Index(bondModes, p.values["bond_mode"])),
		UpDelay: milliseconds(p.values["bond_updelay"]), DownDelay: milliseconds(p.values["bond_downdelay"])}
	for _, m := range ps.byNumber {
		if m.info.Bond != p.saved.Number {
			continue
		}
		up := !m.fresh && !m.info.Off && m.problem.Load() == nil && m.driver.status().state == StateUp
		links = append(links, bond.Link{Number: m.saved.Number, Up: up})
		members = append(members, lacpLink(p, m, up))
		if m.saved.Name == p.values["bond_primary"] {
			config.Primary = m.saved.Number
		}
	}
	aggregated := false // true if LACP decides which members carry frames
	if speaksLACP(p.values) {
		ps.aggregations.follow(p.saved.Number, p.saved.Name, lacpConfig(p.values), members)
		usable, negotiated := ps.aggregations.state(p.saved.Number)
		for i := range links {
			links[i].Up = links[i].Up && usable[links[i].Number]
		}
		config.UpDelay, config.DownDelay = 0, 0 // the partner would not wait for these delays
		if aggregated = negotiated || p.values["lacp_fallback_ab"] != "on"; !aggregated {
			config.Mode = bond.ActiveBackup
		}
	}
	before := s.Active()
	s.Step(time.Now(), config, links)
	changed = ps.showBond(p, s, &xlate.Bond{Spread: xlate.BondSpread(config.Mode), Aggregated: aggregated, Active: s.Active(), Buckets: s.Table()})
	if active := s.Active(); active != before {
		name := "none"
		if m := ps.byNumber[active]; m != nil {
			name = m.saved.Name
		}
		ps.log.Info("bond has another active member", "bond", p.saved.Name, "member", name)
	}
	if driver, ok := p.driver.(*virtualPort); ok {
		switch {
		case len(links) == 0:
			driver.setTrouble("no port has bond=" + p.saved.Name)
		case s.Active() == 0 && slices.ContainsFunc(members, func(m slowMember) bool { return m.Up }):
			driver.setTrouble(cmp.Or(ps.aggregations.lacpTrouble(p.saved.Number), "no member is up"))
		case s.Active() == 0:
			driver.setTrouble("no member is up")
		default:
			driver.setTrouble("")
		}
	}
	return changed
}

// showBond stores the state of a bond in the bond's PortInfo. The next set of ports for look-ups
// gets it. showBond reports whether the state has changed.
func (ps *Ports) showBond(p *switchPort, s *bond.Bond, state *xlate.Bond) (changed bool) {
	changed = p.info.Members == nil || *p.info.Members != *state
	p.info.Members = state
	for _, m := range s.Show(time.Now()) {
		if member := ps.byNumber[m.Number]; member != nil && member.info.Standby == m.Enabled {
			member.info.Standby, changed = !m.Enabled, true
		}
	}
	return changed
}

// describeBond returns the state of a bond for the API. It returns nil if the bond is new and its
// state is not known yet.
func (ps *Ports) describeBond(p *switchPort) *api.Bond {
	s := ps.bonds[p.saved.Name]
	if s == nil {
		return nil // the commit has made no view with the bond yet
	}
	name := func(number uint32) string {
		if m := ps.byNumber[number]; m != nil {
			return m.saved.Name
		}
		return ""
	}
	a := &api.Bond{Mode: p.values["bond_mode"], Active: name(s.Active()), Members: []api.BondMember{}}
	for _, m := range s.Show(time.Now()) {
		a.Members = append(a.Members, api.BondMember{Name: name(m.Number), Enabled: m.Enabled, MayEnable: m.Up, DelayMS: m.Left.Milliseconds(), Hashes: m.Hashes})
	}
	ps.aggregations.describe(p.saved.Number, a, name)
	return a
}

// ChangeBond calls "apply" with the state of a bond and the number of one of its members. The commit
// makes the result known to look-ups of frames. "apply" returns the reason why it refuses the
// change, or "".
func (ps *Ports) ChangeBond(name, member string, apply func(b *bond.Bond, number uint32) (trouble string)) error {
	return ps.configuration.Update(func(tx *change.Tx) error {
		p, m := ps.portByName(name), ps.portByName(member)
		switch {
		case p == nil || ps.bonds[name] == nil:
			return usererr.Errorf("%s: no such bond", name)
		case m == nil || m.info.Bond != p.saved.Number:
			return usererr.Errorf("%s: no such member of bond %s", member, name)
		}
		if trouble := apply(ps.bonds[name], m.saved.Number); trouble != "" {
			return usererr.Errorf("%s: %s", member, trouble)
		}
		ps.touch(tx)
		return nil
	})
}

func milliseconds(text string) time.Duration {
	n, _ := strconv.Atoi(text) // valid: the option table has checked it
	return time.Duration(n) * time.Millisecond
}
