// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"net/netip"
	"slices"

	"weft/central/wire"
)

// Limits of security groups. A host compares the first frame of each connection with all rules of the
// groups of a port, at most maxPortGroups*maxGroupRules.
const (
	// maxPortGroups is the largest number of security groups of one port.
	maxPortGroups = 8
	// maxGroupRules is the largest number of rules in one group.
	maxGroupRules = 128
	// maxRulePorts is the largest number of port ranges (of TCP, UDP or SCTP ports) in one rule.
	maxRulePorts = 16
)

// namedGroups returns the ids of the other groups that occur in rules of the group.
func namedGroups(g *wire.Group) (ids []string) {
	for _, r := range g.GetRules() {
		if id := r.GetGroup(); id != "" && id != g.GetId() && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func checkGroup(g *wire.Group) error {
	if err := checkNames("group", g.Id, g.Name); err != nil {
		return err
	}
	if len(g.Rules) > maxGroupRules {
		return refusedf("group %s has %d rules; expected at most %d", g.Name, len(g.Rules), maxGroupRules)
	}
	for i, r := range g.Rules {
		if reason := wrongRule(r); reason != "" {
			return refusedf("group %s: rule %d: %s", g.Name, i+1, reason)
		}
	}
	return nil
}

// wrongRule returns the reason why a rule is not valid, or "".
func wrongRule(r *wire.GroupRule) string {
	protocol := r.GetProtocol()
	switch {
	case protocol > 255:
		return fmt.Sprintf("protocol %d: expected 0 to 255", protocol)
	case len(r.GetPorts()) > maxRulePorts:
		return fmt.Sprintf("%d ranges of ports; expected at most %d", len(r.GetPorts()), maxRulePorts)
	case len(r.GetPorts()) > 0 && !wire.HasPorts(protocol):
		return fmt.Sprintf("ports of protocol %d: expected tcp, udp or sctp", protocol)
	case r.IcmpType != nil && !wire.HasICMPType(protocol):
		return fmt.Sprintf("an ICMP type of protocol %d: expected icmp or icmp6", protocol)
	case r.GetIcmpType() > 255:
		return fmt.Sprintf("ICMP type %d: expected 0 to 255", r.GetIcmpType())
	case r.GetGroup() != "" && len(r.GetPrefix()) > 0:
		return "a prefix and a group; expected one of them"
	}
	for _, p := range r.GetPorts() {
		if p.GetFirst() > p.GetLast() || p.GetLast() > 65535 {
			return fmt.Sprintf("ports %d-%d: expected 0 to 65535, the lower one first", p.GetFirst(), p.GetLast())
		}
	}
	if r.GetGroup() != "" {
		if err := checkWord("the id of a group", r.GetGroup()); err != nil {
			return err.Error()
		}
	}
	if len(r.GetPrefix()) > 0 {
		a, ok := netip.AddrFromSlice(r.GetPrefix())
		if !ok || a.Is4In6() || int(r.GetPrefixBits()) > a.BitLen() || netip.PrefixFrom(a, int(r.GetPrefixBits())).Masked().Addr() != a {
			return fmt.Sprintf("prefix %s/%d: expected one without bits of a host", addressText(r.GetPrefix()), r.GetPrefixBits())
		}
	}
	return ""
}

// checkPortGroups returns a *Refused if a port has too many groups, or an invalid or repeated group id.
func checkPortGroups(p *wire.Port) error {
	if len(p.Groups) > maxPortGroups {
		return refusedf("port %s is in %d groups; expected at most %d", p.Name, len(p.Groups), maxPortGroups)
	}
	for i, g := range p.Groups {
		if err := checkWord(fmt.Sprintf("port %s: the id of a group", p.Name), g); err != nil {
			return err
		}
		if slices.Contains(p.Groups[:i], g) {
			return refusedf("port %s is in the group of id %s twice; give it once", p.Name, g)
		}
	}
	return nil
}
