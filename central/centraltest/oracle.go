// SPDX-License-Identifier: Apache-2.0

package centraltest

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"weft/central/store"
	"weft/central/wire"
	"weft/control/agent"
)

// Declaration has all networks, ports, groups, hosts and bindings of a store.
type Declaration struct {
	Nets   map[string]*wire.Net
	Ports  map[string]*wire.Port
	Hosts  map[string]*wire.Host
	Binds  map[string]Bound // bindings by port id
	Groups map[string]*wire.Group
}

// Bound is the binding of a port to a host. Generation is the revision that wrote it.
type Bound struct {
	*wire.Bind
	Generation int64
}

// DeclarationOf returns the objects as a Declaration.
func DeclarationOf(objects iter.Seq[store.Object]) *Declaration {
	d := &Declaration{map[string]*wire.Net{}, map[string]*wire.Port{}, map[string]*wire.Host{}, map[string]Bound{}, map[string]*wire.Group{}}
	for o := range objects {
		switch m := o.Message.(type) {
		case *wire.Net:
			d.Nets[o.ID] = m
		case *wire.Port:
			d.Ports[o.ID] = m
		case *wire.Host:
			d.Hosts[o.ID] = m
		case *wire.Group:
			d.Groups[o.ID] = m
		case *wire.Bind:
			d.Binds[o.ID] = Bound{m, o.Revision}
		}
	}
	return d
}

// Expected is the state that the switch of one host should have.
type Expected struct {
	Nets      map[uint32]agent.Net // by VNI; Members is set only for networks that flood
	Ports     map[string]agent.Port
	Addresses map[AddressKey]agent.Address
}

// AddressKey identifies a MAC address in a network.
type AddressKey struct {
	VNI uint32
	MAC uint64
}

// Expect computes the state that the switch of a host should have. local has the switch's ports.
// onDemand returns true for a network in which hosts must ask for addresses. Expect shares no code with
// hub and agent, so that tests compare two implementations.
func (d *Declaration) Expect(host string, local []agent.LocalPort, onDemand func(net string) bool) *Expected {
	e := &Expected{map[uint32]agent.Net{}, map[string]agent.Port{}, map[AddressKey]agent.Address{}}
	names := map[string]string{} // port names by declared port id
	for id, p := range d.Ports {
		for _, l := range local {
			word := l.ID
			if word == "" {
				word = l.Name
			}
			allowed := p.Host == host || p.MoveTo == host || p.Host == "" && (d.Binds[id].Bind == nil || d.Binds[id].Host == host)
			if (word == id || word == p.Name) && allowed && d.Nets[p.Net] != nil {
				names[id] = l.Name
			}
		}
	}
	nets := map[string]bool{}
	for id := range names {
		nets[d.Ports[id].Net] = true
	}
	for id, p := range d.Ports {
		n := d.Nets[p.Net]
		if n == nil || !nets[p.Net] {
			continue
		}
		mac, ips := bits(p.Mac), addresses(p.Addresses)
		if name, own := names[id]; own {
			e.Ports[name] = agent.Port{Name: name, VNI: n.Vni, MAC: mac, IPs: ips, Unchecked: p.Unchecked, Groups: d.groups(p)}
		}
		bound := d.Binds[id]
		if bound.Bind == nil {
			continue
		}
		a := agent.Address{VNI: n.Vni, MAC: mac, IPs: ips, Generation: bound.Generation, Remote: d.endpoint(bound), Groups: p.Groups}
		if bound.Host == host {
			if names[id] == "" {
				continue
			}
			a.Port, a.Remote = names[id], netip.Addr{}
		}
		e.Addresses[AddressKey{n.Vni, mac}] = a
	}
	for id := range nets {
		e.Nets[d.Nets[id].Vni] = d.expectNet(id, host, onDemand(id))
	}
	return e
}

// groups returns the groups of a port. The rules have only a protocol and a group, because tests declare
// nothing else.
func (d *Declaration) groups(p *wire.Port) (list []agent.Group) {
	for _, id := range p.Groups {
		g := agent.Group{ID: id, Name: d.Groups[id].GetName()}
		for _, r := range d.Groups[id].GetRules() {
			g.Rules = append(g.Rules, agent.GroupRule{Protocol: uint8(r.Protocol), ICMPType: -1, Group: r.Group,
				Text: "in " + wire.ProtocolName(r.Protocol) + " from group " + r.Group})
		}
		list = append(list, g)
	}
	return list
}

func (d *Declaration) endpoint(b Bound) netip.Addr {
	raw := b.Endpoint
	if h := d.Hosts[b.Host]; h != nil {
		raw = h.Endpoint
	}
	addr, _ := netip.AddrFromSlice(raw)
	return addr
}

func (d *Declaration) expectNet(id, host string, onDemand bool) agent.Net {
	n := agent.Net{VNI: d.Nets[id].Vni, Flood: d.Nets[id].Flood, Asked: onDemand}
	if !n.Flood {
		return n
	}
	members := map[netip.Addr]bool{}
	for port, b := range d.Binds {
		if p := d.Ports[port]; p != nil && p.Net == id {
			members[d.endpoint(b)] = true
		}
	}
	if h := d.Hosts[host]; h != nil {
		own, _ := netip.AddrFromSlice(h.Endpoint)
		delete(members, own)
	}
	n.Members = slices.SortedFunc(maps.Keys(members), netip.Addr.Compare)
	return n
}

func bits(mac []byte) (n uint64) {
	for _, b := range mac {
		n = n*256 + uint64(b)
	}
	return n
}

func addresses(raw [][]byte) (list []netip.Addr) {
	for _, b := range raw {
		addr, _ := netip.AddrFromSlice(b)
		list = append(list, addr)
	}
	return list
}

// Difference describes one difference between the expected state and what the recorder has. It returns
// "" if there is none.
func (e *Expected) Difference(r *Recorder) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for vni, want := range e.Nets {
		got, ok := r.nets[vni]
		if !ok || got.Flood != want.Flood || got.Asked != want.Asked || want.Flood && !slices.Equal(got.Members, want.Members) {
			return fmt.Sprintf("VNI %d: network %+v, expected %+v", vni, got, want)
		}
	}
	for vni := range r.nets {
		if _, ok := e.Nets[vni]; !ok {
			return fmt.Sprintf("VNI %d: a network that the host does not need", vni)
		}
	}
	for name, want := range e.Ports {
		if got, ok := r.ports[name]; !ok || got.VNI != want.VNI || got.MAC != want.MAC || !slices.Equal(got.IPs, want.IPs) || got.Unchecked != want.Unchecked ||
			!reflect.DeepEqual(got.Groups, want.Groups) {
			return fmt.Sprintf("port %s: %+v, expected %+v", name, got, want)
		}
	}
	for name := range r.ports {
		if _, ok := e.Ports[name]; !ok {
			return fmt.Sprintf("port %s: not declared here", name)
		}
	}
	return e.addressDifference(r)
}

func (e *Expected) addressDifference(r *Recorder) string {
	for k, want := range e.Addresses {
		got, ok := r.addresses[k]
		if !ok && e.Nets[k.VNI].Asked && want.Port == "" {
			continue
		}
		if !ok || got.Port != want.Port || got.Remote != want.Remote || !slices.Equal(got.IPs, want.IPs) || !slices.Equal(got.Groups, want.Groups) {
			return fmt.Sprintf("address %x in VNI %d: %+v (known: %t), expected %+v", k.MAC, k.VNI, got, ok, want)
		}
	}
	for k, got := range r.addresses {
		if _, ok := e.Addresses[k]; !ok {
			return fmt.Sprintf("address %x in VNI %d at %v: nobody has it", k.MAC, k.VNI, got.Remote)
		}
	}
	return ""
}
