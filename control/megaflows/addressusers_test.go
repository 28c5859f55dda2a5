// SPDX-License-Identifier: Apache-2.0

package megaflows

import (
	"math/rand/v2"
	"slices"
	"testing"

	"weft/openflow/fdb"
)

// The index of megaflows by address gives the same results as a linear search.
func TestUsersAgainstASearch(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	f := New(sizes)
	f.reserve(40)
	refs := func() (list []fdb.Ref) {
		for ref := range fdb.Ref(6) {
			if r.IntN(3) == 0 {
				list = append(list, ref)
			}
		}
		return list
	}
	for step := range 5000 {
		slot := uint32(r.IntN(40))
		switch m := f.slots[slot]; {
		case m == nil:
			m = &Megaflow{Slot: slot}
			m.SetUses(refs())
			f.slots[slot] = m
			f.users.add(m)
		case r.IntN(2) == 0:
			f.slots[slot] = nil
			f.users.remove(m)
		default:
			f.Reuse(m, refs())
		}
		table := fdb.New(0, 0)
		changed := refs()
		table.Touch(changed)
		changes := table.TakeChanges()
		var want []*Megaflow
		for _, m := range f.slots {
			if m != nil && slices.ContainsFunc(m.addresses, func(user addressUse) bool { return slices.Contains(changed, user.ref) }) {
				want = append(want, m)
			}
		}
		if got := f.Using(&changes); !slices.Equal(got, want) {
			t.Fatalf("step %d: %d megaflows use %v, want %d", step, len(got), changed, len(want))
		}
	}
}
