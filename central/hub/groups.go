// SPDX-License-Identifier: Apache-2.0

package hub

import "weft/central/wire"

// A host needs the rules of the groups of its own ports, and gets them with each of these ports
// (wire.LocalPort). Of a port on another host it needs only the ids of the groups, which are in the
// port's wire.Place. So a changed rule goes only to hosts that have a port in the group.

// group is a declared group, or one that ports name before it is declared.
type group struct {
	id       string
	declared *wire.Group        // nil: not declared, or no more
	ports    map[*port]struct{} // declared ports in the group
}

func (f *fleet) group(id string) *group {
	g := f.groups[id]
	if g == nil {
		g = &group{id: id, ports: map[*port]struct{}{}}
		f.groups[id] = g
	}
	return g
}

func (f *fleet) setGroup(id string, declared *wire.Group) {
	g := f.group(id)
	g.declared = declared
	for p := range g.ports {
		f.dirtyPorts[p] = struct{}{}
	}
	f.forgetGroup(g)
}

// setGroups moves the port from its former groups to the groups that its declaration names.
func (f *fleet) setGroups(p *port) {
	before := p.groups
	p.groups = nil
	for _, g := range before {
		delete(g.ports, p)
	}
	for _, id := range p.declared.GetGroups() {
		g := f.group(id)
		g.ports[p] = struct{}{}
		p.groups = append(p.groups, g)
	}
	for _, g := range before {
		f.forgetGroup(g)
	}
}

func (f *fleet) forgetGroup(g *group) {
	if g.declared == nil && len(g.ports) == 0 {
		delete(f.groups, g.id)
	}
}

// declaredGroups returns the groups of a declared port. A group that is not declared has no
// rules: the hub may learn of the port before the group.
func (p *port) declaredGroups() (list []*wire.Group) {
	for _, g := range p.groups {
		if g.declared != nil {
			list = append(list, g.declared)
		} else {
			list = append(list, &wire.Group{Id: g.id})
		}
	}
	return list
}

// enforces reports whether the host obeys the rules of the port's groups. Hosts of 0.3.0 ignore groups, so
// the port's guest would be open to all.
func (s *session) enforces(p *port) bool { return s.groups || len(p.groups) == 0 }

func (p *port) groupIDs() (ids [][]byte) {
	for _, g := range p.groups {
		ids = append(ids, []byte(g.id))
	}
	return ids
}
