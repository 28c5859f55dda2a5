// SPDX-License-Identifier: Apache-2.0

package megaflows

import (
	"cmp"
	"slices"

	"weft/openflow"
)

// addressUsers finds the megaflows to translate again when an address changes. Index.mu
// guards it.
type addressUsers map[openflow.AddressRef]*addressUse

// addressUse is a list element: one megaflow that depends on an address.
type addressUse struct {
	ref          openflow.AddressRef
	by           *Megaflow
	older, newer *addressUse
}

// SetUses sets the addresses on which a megaflow depends. It is not in the index.
func (m *Megaflow) SetUses(refs []openflow.AddressRef) {
	m.uses = make([]addressUse, len(refs))
	for i, ref := range refs {
		m.uses[i] = addressUse{ref: ref, by: m}
	}
}

// Addresses reports whether a megaflow depends on addresses.
func (m *Megaflow) Addresses() bool { return len(m.uses) > 0 }

func (u addressUsers) add(m *Megaflow) {
	for i := range m.uses {
		use := &m.uses[i]
		if use.older = u[use.ref]; use.older != nil {
			use.older.newer = use
		}
		u[use.ref] = use
	}
}

func (u addressUsers) remove(m *Megaflow) {
	for i := range m.uses {
		use := &m.uses[i]
		if use.older != nil {
			use.older.newer = use.newer
		}
		switch {
		case use.newer != nil:
			use.newer.older = use.older
		case use.older != nil:
			u[use.ref] = use.older
		default:
			delete(u, use.ref)
		}
		use.older, use.newer = nil, nil
	}
}

// Reuse changes the addresses on which a megaflow of the index depends.
func (f *Index) Reuse(m *Megaflow, refs []openflow.AddressRef) {
	if slices.EqualFunc(m.uses, refs, func(use addressUse, ref openflow.AddressRef) bool { return use.ref == ref }) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.slots[m.Slot] != m { // removed, or not in the index yet
		return
	}
	f.users.remove(m)
	m.SetUses(refs)
	f.users.add(m)
}

// Using returns the megaflows that depend on an address, in slot order.
func (f *Index) Using(changes *openflow.AddressChanges) []*Megaflow {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*Megaflow
	changes.Each(func(ref openflow.AddressRef) {
		for use := f.users[ref]; use != nil; use = use.older {
			list = append(list, use.by)
		}
	})
	slices.SortFunc(list, func(a, b *Megaflow) int { return cmp.Compare(a.Slot, b.Slot) })
	return slices.Compact(list)
}
