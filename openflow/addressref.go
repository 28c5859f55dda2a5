// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"net/netip"
	"slices"
)

// AddressRef names an address on which a translation depends. VLAN and segment are
// left out. Different IPv6 addresses may have the same AddressRef; a change of one
// then revalidates the megaflows of both.
type AddressRef uint64

// anyAddress stands for all addresses.
const anyAddress = ^AddressRef(0)

const (
	// maxAddressRefs is the largest number of addresses that a translation notes. A
	// translation that uses more addresses counts as dependent on every address.
	maxAddressRefs = 8
	// maxAddressChanges is the largest number of changed addresses that a MACTable
	// notes. After more changes, all addresses count as changed.
	maxAddressChanges = 4096
)

// Kinds of AddressRef, stored in its two highest bits. These bits are 0 for a MAC
// address.
const (
	refIPv4    AddressRef = 1 << 62
	refIPv6    AddressRef = 2 << 62
	refNetwork AddressRef = refIPv4 | 1<<61
)

func refOfMAC(mac uint64) AddressRef { return AddressRef(mac) }

func refOfIP(ip netip.Addr) AddressRef {
	v := addrValue(ip)
	if ip.Is4() {
		return refIPv4 | AddressRef(v[1])
	}
	const odd = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
	return refIPv6 | AddressRef((v[0]*odd^v[1])*odd>>2)
}

func refOfNetwork(s Segment) AddressRef { return refNetwork | AddressRef(s) }

// depends notes that the translation depends on an address.
func (x *xlate) depends(ref AddressRef) {
	switch {
	case slices.Contains(x.addresses, ref) || len(x.addresses) == 1 && x.addresses[0] == anyAddress:
	case ref == anyAddress || len(x.addresses) == maxAddressRefs:
		x.addresses = append(x.addresses[:0], anyAddress)
	default:
		x.addresses = append(x.addresses, ref)
	}
}

// AddressChanges is the set of changed addresses of a MACTable. The zero value is the
// empty set.
type AddressChanges struct {
	refs       map[AddressRef]struct{}
	everything bool
}

// Empty reports whether no address has changed.
func (c *AddressChanges) Empty() bool { return len(c.refs) == 0 && !c.everything }

// All reports whether any address may have changed.
func (c *AddressChanges) All() bool { return c.everything }

// Each calls visit with the AddressRef of each changed address. A translation that
// depends on one of them is stale. If All reports true, every translation may be
// stale.
func (c *AddressChanges) Each(visit func(AddressRef)) {
	if c.Empty() {
		return
	}
	for ref := range c.refs {
		visit(ref)
	}
	visit(anyAddress)
}

// add notes a change.
func (c *AddressChanges) add(ref AddressRef) {
	if c.everything {
		return
	}
	if _, noted := c.refs[ref]; noted {
		return
	}
	if len(c.refs) == maxAddressChanges || ref == anyAddress {
		c.refs, c.everything = nil, true
		return
	}
	if c.refs == nil {
		c.refs = map[AddressRef]struct{}{}
	}
	c.refs[ref] = struct{}{}
}

// TakeChanges returns the addresses that have changed since the last call.
func (t *MACTable) TakeChanges() AddressChanges {
	c := *t.changes
	*t.changes = AddressChanges{}
	return c
}

// Touch adds addresses to the changed addresses that the next TakeChanges returns.
// Control uses it for translations that ran while the addresses changed.
func (t *MACTable) Touch(refs []AddressRef) {
	for _, ref := range refs {
		t.changes.add(ref)
	}
}
