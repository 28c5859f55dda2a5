// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"

	"weft/central/wire"
)

// Group is a group of a local port, with its rules.
type Group struct {
	ID, Name string
	Rules    []GroupRule
}

// GroupRule allows the connections that match all its fields.
type GroupRule struct {
	Out      bool         // the rule allows connections that the port begins; otherwise those to the port
	Protocol uint8        // of IP; 0: any
	Ports    []PortRange  // destination ports; none: any
	ICMPType int          // of the first packet; -1: any
	Prefix   netip.Prefix // address of the other end; invalid: any
	Group    string       // id of a group of the other end; "": any
	// Text is the rule as a user of weft-central writes it, except that it has the id of a group instead
	// of its name.
	Text string
	// Never is true for a rule that this version does not understand. It allows nothing.
	Never bool
}

// PortRange is the ports from First to Last.
type PortRange struct{ First, Last uint16 }

// groupsOf returns the groups with these ids, in their order, with the rules that list has for them. A group
// that is not in list has no rules, so it allows nothing: a central of 0.3.0 sends the ids of a port's
// groups, but no rules.
func groupsOf(ids []string, list []*wire.Group) []Group {
	var groups []Group
	for _, id := range ids {
		group := Group{ID: id}
		if i := slices.IndexFunc(list, func(g *wire.Group) bool { return g.GetId() == id }); i >= 0 {
			group.Name = list[i].GetName()
			for _, r := range list[i].GetRules() {
				group.Rules = append(group.Rules, groupRuleOf(r))
			}
		}
		groups = append(groups, group)
	}
	return groups
}

// groupRuleOf converts a rule. A rule with a field that this version does not know may be
// meant to allow less than its other fields say, so it allows nothing.
func groupRuleOf(r *wire.GroupRule) GroupRule {
	rule := GroupRule{Out: r.GetOut(), Protocol: uint8(r.GetProtocol()), ICMPType: -1, Group: r.GetGroup(),
		Text:  r.Text(func(id string) string { return id }),
		Never: len(r.ProtoReflect().GetUnknown()) > 0 || r.GetProtocol() > 255}
	for _, p := range r.GetPorts() {
		rule.Ports = append(rule.Ports, PortRange{uint16(p.GetFirst()), uint16(p.GetLast())})
	}
	if r.IcmpType != nil {
		rule.ICMPType = int(r.GetIcmpType())
	}
	if len(r.GetPrefix()) > 0 {
		rule.Prefix = netip.PrefixFrom(addrOf(r.GetPrefix()), int(r.GetPrefixBits())).Masked()
		rule.Never = rule.Never || !rule.Prefix.IsValid()
	}
	return rule
}
