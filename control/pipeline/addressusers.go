// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"slices"

	"weft/openflow"
)

// addressUsers finds the megaflows to translate again when an address changes. The
// lock of megaflows.index guards it.
type addressUsers map[openflow.AddressRef]*addressUse

// addressUse is a list element: one megaflow that depends on an address.
type addressUse struct {
	ref          openflow.AddressRef
	by           *megaflow
	older, newer *addressUse
}

// setUses sets the addresses of a megaflow that is not installed.
func (m *megaflow) setUses(refs []openflow.AddressRef) {
	m.uses = make([]addressUse, len(refs))
	for i, ref := range refs {
		m.uses[i] = addressUse{ref: ref, by: m}
	}
}

func (u addressUsers) add(m *megaflow) {
	for i := range m.uses {
		use := &m.uses[i]
		if use.older = u[use.ref]; use.older != nil {
			use.older.newer = use
		}
		u[use.ref] = use
	}
}

func (u addressUsers) remove(m *megaflow) {
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

func (f *megaflows) reuse(m *megaflow, refs []openflow.AddressRef) {
	if slices.EqualFunc(m.uses, refs, func(use addressUse, ref openflow.AddressRef) bool { return use.ref == ref }) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.slots[m.slot] != m { // removed, or not in the index yet
		return
	}
	f.users.remove(m)
	m.setUses(refs)
	f.users.add(m)
}

// using returns the megaflows that depend on an address, in slot order.
func (f *megaflows) using(changes *openflow.AddressChanges) []*megaflow {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*megaflow
	changes.Each(func(ref openflow.AddressRef) {
		for use := f.users[ref]; use != nil; use = use.older {
			list = append(list, use.by)
		}
	})
	slices.SortFunc(list, func(a, b *megaflow) int { return cmp.Compare(a.slot, b.slot) })
	return slices.Compact(list)
}
