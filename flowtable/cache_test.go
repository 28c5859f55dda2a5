// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"fmt"
	"math/bits"
	"math/rand"
	"slices"
	"testing"
	"unsafe"

	"weft/internal/shm"
	"weft/packet"
)

func newMemory(t testing.TB, s Sizes) Memory {
	t.Helper()
	var measure shm.Layout
	CarveMemory(&measure, s)
	r, err := shm.Create("cache-test", measure.Off)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return CarveMemory(&shm.Layout{Mem: r.Bytes()}, s)
}

// slowFlow and slowCache are a reference implementation of the cache: a list of
// flows.
type slowFlow struct {
	slot      uint32
	key, mask Key
	actions   []Action
}

type slowCache struct {
	sizes Sizes
	flows []slowFlow
}

func (s *slowCache) find(slot uint32) int {
	return slices.IndexFunc(s.flows, func(f slowFlow) bool { return f.slot == slot })
}

func (f *slowFlow) matches(k *Key) bool {
	for i := range k {
		if (k[i]^f.key[i])&f.mask[i] != 0 {
			return false
		}
	}
	return true
}

func (s *slowCache) matching(k *Key) (slots []uint32) {
	for i := range s.flows {
		if s.flows[i].matches(k) {
			slots = append(slots, s.flows[i].slot)
		}
	}
	return slots
}

func (s *slowCache) install(f slowFlow) InstallResult {
	masks := map[Key]bool{f.mask: true}
	for i := range s.flows {
		masks[s.flows[i].mask] = true
	}
	switch {
	case int(f.slot) >= s.sizes.Megaflows:
		return InstallBadSlot
	case s.find(f.slot) >= 0:
		return InstallSlotInUse
	case len(f.actions) > MaxActions:
		return InstallTooManyActions
	case len(masks) > s.sizes.Masks:
		return InstallMasksFull
	}
	s.flows = append(s.flows, f)
	return Installed
}

// randomKey returns a random key with few different values per field.
func randomKey(rng *rand.Rand) (k Key) {
	groups := rng.Intn(groupEnd) // any set of groups
	for i := range k {
		if g := wordGroups[i]; g == 0 || groups&int(g) != 0 {
			k[i] = uint64(rng.Intn(3)) << 40
		}
	}
	return k
}

// The digest covers the base words (WPort to WIPv4) and the words of groups. Every other word of a key must
// therefore belong to a group.
func TestEveryWordHasAGroup(t *testing.T) {
	for at, group := range wordGroups {
		if (group == 0) != (at < baseWords) {
			t.Errorf("word %d has group %#x", at, group)
		}
		if group >= groupEnd {
			t.Errorf("group %#x of word %d: want a group below groupEnd", group, at)
		}
	}
}

func randomMask(rng *rand.Rand) (m Key) {
	for range rng.Intn(5) {
		m[rng.Intn(KeyWords)] = [...]uint64{^uint64(0), 1 << 40, 0xff << 40}[rng.Intn(3)]
	}
	return m
}

func randomActions(rng *rand.Rand) []Action {
	list := make([]Action, rng.Intn(10))
	for i := range list {
		list[i] = Action{Op: Op(1 + rng.Intn(2)), U32: uint32(rng.Intn(2)), U64: uint64(rng.Intn(2))}
	}
	return list
}

// checkCache compares random installs, removes and lookups in a Cache and a
// slowCache.
func checkCache(t *testing.T, m Memory, sizes Sizes, seed int64, steps int) {
	rng := rand.New(rand.NewSource(seed))
	c, twin := NewCache(m, uint64(seed)), &slowCache{sizes: sizes}
	var masks []Key
	for range sizes.Masks + 1 {
		masks = append(masks, randomMask(rng))
	}
	var keys [packet.BatchSize]Key
	for step := range steps {
		switch rng.Intn(4) {
		case 0, 1:
			f := slowFlow{uint32(rng.Intn(sizes.Megaflows + 1)), randomKey(rng), masks[rng.Intn(len(masks))], randomActions(rng)}
			got := c.Install(f.slot, &f.key, &f.mask, f.actions)
			if got == InstallActionsFull && len(f.actions) > 0 && twin.find(f.slot) < 0 {
				continue // see TestActionStore
			}
			if want := twin.install(f); got != want {
				t.Fatalf("seed %d step %d: Install: %v, want %v", seed, step, got, want)
			}
		case 2:
			slot := uint32(rng.Intn(sizes.Megaflows + 1))
			i := twin.find(slot)
			if got := c.Remove(slot); got != (i >= 0) {
				t.Fatalf("seed %d step %d: Remove: %v", seed, step, got)
			}
			if i >= 0 {
				twin.flows = slices.Delete(twin.flows, i, i+1)
			}
		}
		for i := range keys {
			keys[i] = randomKey(rng)
		}
		checkLookup(t, c, twin, &keys, rng.Uint32(), fmt.Sprintf("seed %d step %d", seed, step))
	}
	checkRead(t, &m, c, twin)
}

func checkLookup(t *testing.T, c *Cache, twin *slowCache, keys *[packet.BatchSize]Key, live uint32, name string) {
	t.Helper()
	const untouched = NoSlot - 1
	var out [packet.BatchSize]uint32
	for i := range out {
		out[i] = untouched
	}
	var n LookupCounts
	c.Lookup(keys, live, &out, &n)
	misses := uint64(0)
	for i, slot := range out {
		if live>>i&1 == 0 {
			if slot != untouched {
				t.Fatalf("%s: frame %d is not live and got slot %d", name, i, slot)
			}
			continue
		}
		want := twin.matching(&keys[i])
		if slot == NoSlot {
			misses++
		}
		if slot == NoSlot && len(want) > 0 || slot != NoSlot && !slices.Contains(want, slot) {
			t.Fatalf("%s: frame %d: slot %d, want one of %v", name, i, int32(slot), want)
		}
	}
	if n.Misses != misses || n.ExactHits+n.MegaflowHits+n.Misses != uint64(bits.OnesCount32(live)) {
		t.Fatalf("%s: counts %+v for %d frames, %d of them missing", name, n, bits.OnesCount32(live), misses)
	}
}

func checkRead(t *testing.T, m *Memory, c *Cache, twin *slowCache) {
	t.Helper()
	for slot := range uint32(len(m.Flows) + 1) {
		key, mask, actions, installed := m.Read(slot)
		i := twin.find(slot)
		if installed != (i >= 0) {
			t.Fatalf("slot %d: Read reports installed %v", slot, installed)
		}
		if i < 0 {
			continue
		}
		f := twin.flows[i]
		if mask != f.mask || !f.matches(&key) || !slices.Equal(actions, f.actions) || !slices.Equal(c.Actions(slot), f.actions) {
			t.Fatalf("slot %d: read %v %v %v, want %+v", slot, key, mask, actions, f)
		}
	}
}

var tinySizes = Sizes{Megaflows: 64, Exact: 16, Masks: 5, Actions: 64}

func TestCacheAgainstTwin(t *testing.T) {
	seeds := int64(25)
	if testing.Short() {
		seeds = 5
	}
	for _, sizes := range []Sizes{tinySizes, {Megaflows: 256, Exact: 1024, Masks: 20, Actions: 4096}} {
		m := newMemory(t, sizes)
		for seed := range seeds {
			checkCache(t, m, sizes, seed, 400)
		}
	}
}

func FuzzCache(f *testing.F) {
	f.Add(int64(1), uint16(100))
	m := newMemory(f, tinySizes)
	f.Fuzz(func(t *testing.T, seed int64, steps uint16) {
		checkCache(t, m, tinySizes, seed, int(steps%1000))
	})
}

// No record spans more cache lines than necessary, because a prefetch requests only these. The assembly of
// compareEntries also relies on the sizes and offsets.
func TestLineSizes(t *testing.T) {
	for _, c := range []struct {
		name        string
		bytes, want uintptr
	}{
		{"Flow", unsafe.Sizeof(Flow{}), 32},
		{"exactEntry", unsafe.Sizeof(exactEntry{}), 64},
		{"flow of an exactEntry", unsafe.Offsetof(exactEntry{}.flow), 48},
		{"form of an exactEntry", unsafe.Offsetof(exactEntry{}.form), 56},
		{"digest", unsafe.Sizeof(digest{}), 16},
		{"form of a digest", unsafe.Offsetof(digest{}.form), 8},
		{"Key", unsafe.Sizeof(Key{}), 248},
		{"actions in a block", blockActions * unsafe.Sizeof(Action{}), 64},
		{"megaflow", unsafe.Sizeof(megaflow{}), 256},
		{"what a search for an IPv4 flow reads of a megaflow", unsafe.Offsetof(megaflow{}.key) + baseWords*8, 56},
	} {
		if c.bytes != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, c.bytes, c.want)
		}
	}
}

// Lookup is correct for batches of every size with known, unknown and stale flows in
// any order.
func TestBatchesOfEverySize(t *testing.T) {
	sizes := Sizes{Megaflows: 64, Exact: 1024, Masks: 4, Actions: 64}
	m := newMemory(t, sizes)
	rng := rand.New(rand.NewSource(1))
	for count := range packet.BatchSize + 1 {
		c, twin := NewCache(m, uint64(count)), &slowCache{sizes: sizes}
		f := slowFlow{mask: Key{WPort: ^uint64(0), WIPv4: ^uint64(0)}, actions: []Action{{Op: OpOutput}}}
		for ; f.slot < 48; f.slot++ {
			f.key = Key{WPort: 7, WIPv4: uint64(f.slot)}
			c.Install(f.slot, &f.key, &f.mask, f.actions)
			twin.install(f)
		}
		live := uint32(0)
		for _, i := range rng.Perm(packet.BatchSize)[:count] {
			live |= 1 << i
		}
		var keys [packet.BatchSize]Key
		for round := range 12 { // repeated, because the state of one lookup must not affect the next one
			where := fmt.Sprintf("%d frames, round %d", count, round)
			known := 0
			for i, k := range rng.Perm(64)[:packet.BatchSize] { // a quarter of these have no megaflow
				keys[i] = Key{WPort: 7, WIPv4: uint64(k), WIP: rng.Uint64()}
				if live>>i&1 != 0 && len(twin.matching(&keys[i])) > 0 {
					known++
				}
			}
			checkLookup(t, c, twin, &keys, live, where)
			var out [packet.BatchSize]uint32
			var n LookupCounts
			if c.Lookup(&keys, live, &out, &n); n.ExactHits != uint64(known) {
				t.Fatalf("%s: %d hits, want %d", where, n.ExactHits, known)
			}
			gone := uint32(rng.Intn(48))
			if i := twin.find(gone); i >= 0 {
				c.Remove(gone)
				twin.flows = slices.Delete(twin.flows, i, i+1)
			}
			checkLookup(t, c, twin, &keys, live, where+", one removed")
		}
	}
}

// Removing a megaflow removes its exact-match entries. Entries of other flows stay.
func TestRemoveKeepsOtherEntries(t *testing.T) {
	c := NewCache(newMemory(t, tinySizes), 1)
	mask := Key{WIPv4: ^uint64(0)}
	var keys [packet.BatchSize]Key
	for i := range uint32(8) {
		keys[i][WIPv4] = uint64(i)
		c.Install(i, &keys[i], &mask, nil)
	}
	var out [packet.BatchSize]uint32
	var n LookupCounts
	c.Lookup(&keys, 0xff, &out, &n)
	n = LookupCounts{}
	c.Remove(3)
	c.Lookup(&keys, 0xff, &out, &n)
	if n.ExactHits != 7 || n.Misses != 1 || out[3] != NoSlot {
		t.Fatalf("after Remove(3): counts %+v, slots %v", n, out[:8])
	}
	// Slot 3 gets another megaflow. The key of the removed one must not find it.
	key := Key{WIPv4: 100}
	c.Install(3, &key, &mask, nil)
	if c.Lookup(&keys, 0xff, &out, &n); out[3] != NoSlot {
		t.Fatalf("the old key found the new megaflow in slot %d", out[3])
	}
}

// Keys that differ only in bits outside all masks share an exact-match entry.
func TestUnionOfMasks(t *testing.T) {
	c := NewCache(newMemory(t, tinySizes), 1)
	mask := Key{WPort: ^uint64(0)}
	key := Key{WPort: 5}
	c.Install(0, &key, &mask, nil)
	var keys [packet.BatchSize]Key
	for i := range keys {
		keys[i] = Key{WPort: 5, WL4: uint64(i), WTunID: uint64(i)}
	}
	var out [packet.BatchSize]uint32
	var n LookupCounts
	c.Lookup(&keys, 1, &out, &n)
	c.Lookup(&keys, ^uint32(0), &out, &n)
	if n.ExactHits != 32 || n.MegaflowHits != 1 {
		t.Fatalf("counts %+v, want 32 exact hits and 1 megaflow hit", n)
	}
}

func TestCacheAllocatesNothing(t *testing.T) {
	sizes := Sizes{Megaflows: 256, Exact: 1024, Masks: 20, Actions: 4096}
	c := NewCache(newMemory(t, sizes), 1)
	rng := rand.New(rand.NewSource(1))
	var keys [packet.BatchSize]Key
	var out [packet.BatchSize]uint32
	var n LookupCounts
	actions := make([]Action, 40)
	if a := testing.AllocsPerRun(500, func() {
		for i := range keys {
			keys[i][WPort], keys[i][WTunID] = rng.Uint64()&0xff, rng.Uint64()&1
		}
		mask := Key{WPort: 0xff, WL4: 1 << rng.Intn(20)}
		slot := rng.Uint32() % 256
		actions = actions[:rng.Intn(40)]
		if c.Install(slot, &keys[0], &mask, actions) == InstallSlotInUse {
			c.Remove(slot)
		}
		c.Lookup(&keys, ^uint32(0), &out, &n)
	}); a != 0 {
		t.Fatalf("a lookup makes %v allocations, want 0", a)
	}
	if n.ExactHits == 0 || n.MegaflowHits == 0 || n.Misses == 0 {
		t.Fatalf("not all paths were taken: %+v", n)
	}
}

// NewCache empties used memory.
func TestNewCacheEmpties(t *testing.T) {
	m := newMemory(t, tinySizes)
	c := NewCache(m, 1)
	key := Key{WPort: 1}
	for i := range uint32(64) {
		c.Install(i, &key, &key, []Action{{Op: OpOutput, U32: i}})
	}
	c = NewCache(m, 1)
	checkRead(t, &m, c, &slowCache{})
	for i := range uint32(16) { // as many megaflows as fit
		if r := c.Install(i, &key, &key, []Action{{Op: OpOutput, U32: i}}); r != Installed {
			t.Fatalf("slot %d: %v", i, r)
		}
	}
}

func TestTooManyActions(t *testing.T) {
	c := NewCache(newMemory(t, Sizes{Megaflows: 8, Exact: 8, Masks: 1, Actions: 1 << 13}), 1)
	var key Key
	if r := c.Install(0, &key, &key, make([]Action, MaxActions)); r != Installed {
		t.Fatal(r)
	}
	if r := c.Install(1, &key, &key, make([]Action, MaxActions+1)); r != InstallTooManyActions {
		t.Fatal(r)
	}
}

func TestSizesCheck(t *testing.T) {
	for _, s := range []Sizes{DefaultSizes, tinySizes} {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
	for name, change := range map[string]func(*Sizes){
		"megaflows 0":     func(s *Sizes) { s.Megaflows = 0 },
		"megaflows 3":     func(s *Sizes) { s.Megaflows = 3 },
		"exact 4":         func(s *Sizes) { s.Exact = 4 },
		"actions 2":       func(s *Sizes) { s.Actions = 2 },
		"actions 1 << 40": func(s *Sizes) { s.Actions = 1 << 40 },
		"masks 0":         func(s *Sizes) { s.Masks = 0 },
	} {
		s := DefaultSizes
		if change(&s); s.Check() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
