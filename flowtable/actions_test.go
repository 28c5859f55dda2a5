// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"math/rand"
	"slices"
	"testing"
)

// checkActionStore acquires and releases random lists. It compares the store with a slice of the acquired
// lists.
func checkActionStore(t *testing.T, m Memory, seed int64, steps int) {
	type stored struct {
		list []Action
		ref  ActionRef
		refs int
	}
	m.empty()
	s := newActionStore(&m, uint64(seed))
	rng := rand.New(rand.NewSource(seed))
	var twin []stored
	for range steps {
		if len(twin) > 0 && rng.Intn(5) < 2 {
			i := rng.Intn(len(twin))
			s.release(twin[i].ref)
			if twin[i].refs--; twin[i].refs == 0 {
				twin = slices.Delete(twin, i, i+1)
			}
		} else {
			list := make([]Action, 1+rng.Intn(1<<rng.Intn(9)))
			list[0].U32 = uint32(rng.Intn(8))
			list[len(list)-1].U64 = uint64(rng.Intn(2))
			i := slices.IndexFunc(twin, func(x stored) bool { return slices.Equal(x.list, list) })
			at, ok := s.acquire(list)
			switch {
			case i >= 0 && (!ok || at != twin[i].ref):
				t.Fatalf("seed %d: a known list is stored at %d and %d", seed, at, twin[i].ref)
			case i >= 0:
				twin[i].refs++
			case ok:
				twin = append(twin, stored{list, at, 1})
			}
		}
		for _, x := range twin {
			if !slices.Equal(s.list(x.ref), x.list) {
				t.Fatalf("seed %d: the list at %d changed", seed, x.ref)
			}
		}
	}
	for _, x := range twin {
		for range x.refs {
			s.release(x.ref)
		}
	}
	// After the last release, the store consists only of free blocks of the largest
	// order.
	most := len(m.actions) >> s.top / blockActions
	for i := range most {
		list := make([]Action, blockActions<<s.top)
		list[0].U32 = uint32(1000 + i)
		if _, ok := s.acquire(list); !ok {
			t.Fatalf("seed %d: the empty store refused block %d of %d", seed, i, most)
		}
	}
	if _, ok := s.acquire([]Action{{U32: 1 << 20}}); ok {
		t.Fatalf("seed %d: the full store took a list", seed)
	}
}

func TestActionStore(t *testing.T) {
	for _, n := range []int{4, 64, 4096, 1 << 13} {
		m := newMemory(t, Sizes{Megaflows: 1, Exact: 8, Masks: 1, Actions: n})
		for seed := range int64(10) {
			checkActionStore(t, m, seed, 300)
		}
	}
}

func FuzzActionStore(f *testing.F) {
	f.Add(int64(1), uint16(100))
	m := newMemory(f, Sizes{Megaflows: 1, Exact: 8, Masks: 1, Actions: 4096})
	f.Fuzz(func(t *testing.T, seed int64, steps uint16) { checkActionStore(t, m, seed, int(steps%1000)) })
}
