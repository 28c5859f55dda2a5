// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"net/netip"
	"slices"
)

// Declared is an address that the operator has bound to a port. It stays in the table
// as long as the port exists. No other port can learn the MAC address or its IP
// addresses, unless the operator declares them there, too (as for routers with a shared
// virtual address).
type Declared struct {
	Segment Segment
	Port    uint32
	MAC     uint64
	IPs     []netip.Addr
}

func (d Declared) equal(o Declared) bool {
	return d.Segment == o.Segment && d.Port == o.Port && d.MAC == o.MAC && slices.Equal(d.IPs, o.IPs)
}

// declarations holds the addresses that the operator has bound to ports.
type declarations struct {
	list []Declared
	macs map[uint64][]*macEntry // by MAC address; a declaration is valid in all VLANs
	ips  map[netip.Addr][]declaredIP
}

type declaredIP struct {
	segment Segment
	port    uint32
}

// Declare replaces the addresses that the operator has bound to ports. It removes learned addresses that are
// now bound to other ports. After a change, all addresses count as changed. The table keeps the slice
// "list"; the caller must not change it any more.
func (t *Table) Declare(list []Declared) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.EqualFunc(list, t.declared.list, Declared.equal) {
		return
	}
	t.changes.add(AnyRef)
	t.declared = declarations{list: list, macs: map[uint64][]*macEntry{}, ips: map[netip.Addr][]declaredIP{}}
	for _, d := range list {
		t.declared.macs[d.MAC] = append(t.declared.macs[d.MAC],
			&macEntry{key: keyOf(0, d.MAC), segment: d.Segment, macPlace: macPlace{port: d.Port}})
		for _, ip := range d.IPs {
			t.declared.ips[ip] = append(t.declared.ips[ip], declaredIP{d.Segment, d.Port})
		}
	}
	t.generation++
	t.removeIf(func(e *macEntry) bool {
		return t.declaredElsewhere(&Learn{Segment: e.segment, Port: e.port, MAC: e.entry().MAC})
	})
	t.neighbours.removeIf(func(n *neighbour) bool {
		return t.declaredIPElsewhere(&Learn{Segment: n.segment, Port: n.port, IP: n.ip})
	})
}

func (t *Table) removeIf(unwanted func(*macEntry) bool) {
	for _, p := range t.ports {
		for _, h := range p.holders {
			for e := h.oldest; e != nil; {
				next := e.newer
				if unwanted(e) {
					t.remove(e)
				}
				e = next
			}
		}
	}
}

// findDeclared returns the operator's declaration of a MAC address in the segment. It returns nil if no port
// or several ports declare the address.
func (t *Table) findDeclared(s Segment, mac uint64) (declaration *macEntry) {
	for _, e := range t.declared.macs[mac] {
		switch {
		case !t.overlap(e.segment, s):
		case declaration != nil:
			return nil
		default:
			declaration = e
		}
	}
	return declaration
}

// declaredElsewhere reports whether the operator has bound the MAC address l.MAC to other ports, and not to
// l.Port. The table must then not learn the address behind l.Port.
func (t *Table) declaredElsewhere(l *Learn) bool {
	list := t.declared.macs[l.MAC]
	overlaps := func(e *macEntry) bool { return t.overlap(e.segment, l.Segment) }
	return slices.ContainsFunc(list, overlaps) &&
		!slices.ContainsFunc(list, func(e *macEntry) bool { return overlaps(e) && e.port == l.Port })
}

// declaredIPElsewhere reports whether the operator has bound the IP address l.IP to other ports, and not to
// l.Port.
func (t *Table) declaredIPElsewhere(l *Learn) bool {
	list := t.declared.ips[l.IP]
	overlaps := func(e declaredIP) bool { return t.overlap(e.segment, l.Segment) }
	return slices.ContainsFunc(list, overlaps) &&
		!slices.ContainsFunc(list, func(e declaredIP) bool { return overlaps(e) && e.port == l.Port })
}
