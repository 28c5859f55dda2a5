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

// The parts of an index have each megaflow once, and Present finds those that were removed.
func TestPartsHaveAllMegaflows(t *testing.T) {
	f := New(sizes)
	f.reserve(2*PartSlots + 7)
	var want []*Megaflow
	for slot := range f.slots {
		if slot%3 != 0 {
			f.slots[slot] = &Megaflow{Slot: uint32(slot)}
			want = append(want, f.slots[slot])
		}
	}
	var got, part []*Megaflow
	parts := 0
	for next := uint32(0); parts == 0 || next != 0; parts++ {
		part, next = f.Part(part, next)
		got = append(got, part...)
	}
	if !slices.Equal(got, want) || parts != 3 {
		t.Errorf("%d parts have %d megaflows, want 3 parts with %d", parts, len(got), len(want))
	}
	f.slots[1], f.slots[2] = nil, &Megaflow{Slot: 2}
	if got := f.Present(slices.Clone(want)); !slices.Equal(got, want[2:]) {
		t.Errorf("%d megaflows are present, want %d", len(got), len(want)-2)
	}
	if part, next := New(sizes).Part(nil, 0); len(part) != 0 || next != 0 {
		t.Errorf("an empty index has a part with %d megaflows, and one from slot %d", len(part), next)
	}
}
