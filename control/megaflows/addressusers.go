// SPDX-License-Identifier: Apache-2.0

package megaflows

import (
	"cmp"
	"slices"

	"weft/openflow/fdb"
)

// addressUsers maps an address to the megaflows that depend on it. When the address changes, the control
// process translates these megaflows again. Index.mu guards the map.
type addressUsers map[fdb.Ref]*addressUse

// addressUse is an element of a linked list: one megaflow that depends on an address.
type addressUse struct {
	ref          fdb.Ref
	megaflow     *Megaflow
	older, newer *addressUse
}

// SetUses sets the addresses on which a megaflow depends, before the megaflow is in the
// index.
func (m *Megaflow) SetUses(refs []fdb.Ref) {
	m.addresses = make([]addressUse, len(refs))
	for i, ref := range refs {
		m.addresses[i] = addressUse{ref: ref, megaflow: m}
	}
}

// Addresses reports whether the megaflow depends on any MAC or IP address.
func (m *Megaflow) Addresses() bool { return len(m.addresses) > 0 }

func (u addressUsers) add(m *Megaflow) {
	for i := range m.addresses {
		record := &m.addresses[i]
		if record.older = u[record.ref]; record.older != nil {
			record.older.newer = record
		}
		u[record.ref] = record
	}
}

func (u addressUsers) remove(m *Megaflow) {
	for i := range m.addresses {
		record := &m.addresses[i]
		if record.older != nil {
			record.older.newer = record.newer
		}
		switch {
		case record.newer != nil:
			record.newer.older = record.older
		case record.older != nil:
			u[record.ref] = record.older
		default:
			delete(u, record.ref)
		}
		record.older, record.newer = nil, nil
	}
}

// Reuse replaces the addresses on which a megaflow of the index depends. It does nothing if the megaflow
// is not in the index.
func (f *Index) Reuse(m *Megaflow, refs []fdb.Ref) {
	if slices.EqualFunc(m.addresses, refs, func(user addressUse, ref fdb.Ref) bool { return user.ref == ref }) {
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

// Using returns the megaflows that depend on one of the changed addresses, sorted by slot, each
// once.
func (f *Index) Using(changes *fdb.Changes) []*Megaflow {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*Megaflow
	changes.Each(func(ref fdb.Ref) {
		for record := f.users[ref]; record != nil; record = record.older {
			list = append(list, record.megaflow)
		}
	})
	slices.SortFunc(list, func(a, b *Megaflow) int { return cmp.Compare(a.Slot, b.Slot) })
	return slices.Compact(list)
}
