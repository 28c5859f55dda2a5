// SPDX-License-Identifier: Apache-2.0

package central

import (
	"strings"

	"weft/control/agent"
	"weft/openflow/fdb"
	"weft/openflow/xlate"
)

// maxGroupSets limits the sets of groups that Switch.groupSets remembers. At the limit it forgets all of
// them. An unchanged address with the same groups then looks changed once.
const maxGroupSets = 1 << 16

// groupSet returns the set of the groups with these ids. Addresses with the same groups share it, so
// that an unchanged address is recognized.
func (f *Switch) groupSet(ids []string) *fdb.Groups {
	if len(ids) == 0 {
		return nil
	}
	key := strings.Join(ids, "\n")
	if set := f.groupSets[key]; set != nil {
		return set
	}
	if f.groupSets == nil || len(f.groupSets) >= maxGroupSets {
		f.groupSets = map[string]*fdb.Groups{}
	}
	set := fdb.NewGroups(ids)
	f.groupSets[key] = set
	return set
}

// policy returns the rules of a port's groups, or nil if the port is in no group.
func (f *Switch) policy(groups []agent.Group) *xlate.Policy {
	if len(groups) == 0 {
		return nil
	}
	p := &xlate.Policy{}
	var ids []string
	for i := range groups {
		g := &groups[i]
		ids = append(ids, g.ID)
		for j := range g.Rules {
			r := &g.Rules[j]
			p.FiltersSent = p.FiltersSent || r.Out
			if r.Never {
				continue
			}
			rule := xlate.PolicyRule{Sent: r.Out, Protocol: r.Protocol, ICMPType: r.ICMPType, Prefix: r.Prefix, Group: r.Group, Name: g.Name + ": " + r.Text}
			for _, ports := range r.Ports {
				rule.Ports = append(rule.Ports, xlate.PortRange{First: ports.First, Last: ports.Last})
			}
			p.Rules = append(p.Rules, rule)
		}
	}
	p.Groups = f.groupSet(ids)
	return p
}
