// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"encoding/binary"
	"net/netip"
)

// Ref identifies what the translation of a flow has read from the Table: a MAC address, an IP address, or
// the settings of a network. If that changes, the megaflows of this translation are stale. A Ref does not
// include the VLAN and the segment. Two IPv6 addresses may have the same Ref; a change of one then
// revalidates the megaflows of both.
type Ref uint64

// AnyRef is the Ref of all addresses. As a change, it makes every translation stale. In the list of what a
// translation has read, it makes the translation stale after any change.
const AnyRef = ^Ref(0)

// maxAddressChanges is the largest number of changed addresses that a Table records. After more changes, all
// addresses count as changed.
const maxAddressChanges = 4096

// Kinds of Ref, in its highest bits. The two highest bits are 0 for a MAC address. A network has bit 61 in
// addition to the bit of an IPv4 address.
const (
	refIPv4    Ref = 1 << 62
	refIPv6    Ref = 2 << 62
	refNetwork Ref = refIPv4 | 1<<61
)

// RefOfMAC returns the Ref of a MAC address, a number of 48 bits.
func RefOfMAC(mac uint64) Ref { return Ref(mac) }

// RefOfIP returns the Ref of an IP address: an IPv4 address itself, or 62 bits of a hash of an
// IPv6 address.
func RefOfIP(ip netip.Addr) Ref {
	if ip.Is4() {
		b := ip.As4()
		return refIPv4 | Ref(binary.BigEndian.Uint32(b[:]))
	}
	b := ip.As16()
	hi, lo := binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
	const odd = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
	return refIPv6 | Ref((hi*odd^lo)*odd>>2)
}

// RefOfNetwork returns the Ref of the settings of the network that weft-central declares for segment s.
// weft-central is the service that configures networks and ports on many hosts.
func RefOfNetwork(s Segment) Ref { return refNetwork | Ref(s) }

// Changes is a set of addresses that have changed in a Table. The control process finds the megaflows to
// revalidate with it. The zero value is the empty set.
type Changes struct {
	refs    map[Ref]struct{}
	allRefs bool
}

// Empty reports whether no address has changed.
func (c *Changes) Empty() bool { return len(c.refs) == 0 && !c.allRefs }

// All reports whether every address counts as changed. It is true after more than maxAddressChanges changes,
// or after Declare has replaced the operator's declared addresses.
func (c *Changes) All() bool { return c.allRefs }

// Each calls visit with the Ref of each changed address, and then with AnyRef, because a megaflow that
// depends on any address is stale, too. If no address has changed, Each calls nothing. If All reports true,
// Each calls visit only with AnyRef, and every translation may be stale.
func (c *Changes) Each(visit func(Ref)) {
	if c.Empty() {
		return
	}
	for ref := range c.refs {
		visit(ref)
	}
	visit(AnyRef)
}

// add records a change of the address, or of the network, that "ref" identifies. If the set is full, or if
// the argument is AnyRef, all addresses count as changed from then on.
func (c *Changes) add(ref Ref) {
	if c.allRefs {
		return
	}
	if _, noted := c.refs[ref]; noted {
		return
	}
	if len(c.refs) == maxAddressChanges || ref == AnyRef {
		c.refs, c.allRefs = nil, true
		return
	}
	if c.refs == nil {
		c.refs = map[Ref]struct{}{}
	}
	c.refs[ref] = struct{}{}
}

// TakeChanges returns the addresses that have changed since the last call. After the call, the set of
// changes in the Table is empty.
func (t *Table) TakeChanges() Changes {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := *t.changes
	*t.changes = Changes{}
	return c
}

// Touch marks addresses as changed, so that the next TakeChanges returns them. The control process calls it
// for a translation if another one has learned addresses at the same time.
func (t *Table) Touch(refs []Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ref := range refs {
		t.changes.add(ref)
	}
}
