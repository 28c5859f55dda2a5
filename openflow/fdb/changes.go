// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"encoding/binary"
	"net/netip"
)

// Ref identifies a MAC or IP address, or a network's settings, on which the translation of a
// flow depends. It leaves out VLAN and segment. Different IPv6 addresses may have the same Ref;
// a change of one then revalidates the megaflows of both.
type Ref uint64

// AnyRef stands for every address, for example in a change after which every translation is
// stale.
const AnyRef = ^Ref(0)

// maxAddressChanges is the largest number of changed addresses that a Table notes. After
// more changes, all addresses count as changed.
const maxAddressChanges = 4096

// Kinds of Ref, stored in its two highest bits. These bits are 0 for a MAC
// address.
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

// RefOfNetwork returns the Ref of the settings of the network that weft-central declares for
// segment s.
func RefOfNetwork(s Segment) Ref { return refNetwork | Ref(s) }

// Changes is a set of addresses that have changed in a Table, so that control finds the stale
// translations. The zero value is the empty set.
type Changes struct {
	refs    map[Ref]struct{}
	allRefs bool
}

// Empty reports whether no address has changed.
func (c *Changes) Empty() bool { return len(c.refs) == 0 && !c.allRefs }

// All reports whether every address counts as changed. It is true after more than
// maxAddressChanges changes, or after a change of all declarations.
func (c *Changes) All() bool { return c.allRefs }

// Each calls visit with the Ref of each changed address, and then with AnyRef. A translation
// that depends on one of these addresses is stale. If All reports true, every translation may
// be stale.
func (c *Changes) Each(visit func(Ref)) {
	if c.Empty() {
		return
	}
	for ref := range c.refs {
		visit(ref)
	}
	visit(AnyRef)
}

// add adds the address ref to the changed addresses. If the set is full, or ref is AnyRef, all
// addresses count as changed.
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

// TakeChanges returns the addresses that have changed since the last call, and empties the
// table's own set.
func (t *Table) TakeChanges() Changes {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := *t.changes
	*t.changes = Changes{}
	return c
}

// Touch adds addresses to the changed addresses that the next TakeChanges returns.
// Control uses it for translations that ran while the addresses changed.
func (t *Table) Touch(refs []Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ref := range refs {
		t.changes.add(ref)
	}
}
