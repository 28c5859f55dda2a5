// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"math/rand/v2"
	"testing"

	"weft/packet"
)

// An exact-match entry matches only if all its words are equal. A difference in one
// word must not be hidden by the next word.
func TestEveryBitDiffers(t *testing.T) {
	var a, all Key
	for i := range a {
		a[i], all[i] = ^uint64(0), ^uint64(0)
	}
	wordsDiffer := func(w *[baseWords]uint64, k, u *Key) uint64 { return lowerDiffer(w, k, u) | upperDiffer(w, k, u) }
	entry := [baseWords]uint64(a[:])
	if wordsDiffer(&entry, &a, &all) != 0 {
		t.Fatal("equal words differ")
	}
	for i := range baseWords {
		for bit := range 64 {
			b, but := a, all
			b[i] ^= 1 << bit
			other := [baseWords]uint64(b[:])
			if wordsDiffer(&entry, &b, &all) == 0 || wordsDiffer(&other, &a, &all) == 0 {
				t.Fatalf("bit %d of word %d makes no difference", bit, i)
			}
			if but[i] ^= 1 << bit; wordsDiffer(&other, &a, &but) != 0 {
				t.Fatalf("bit %d of word %d makes a difference, and nobody looks at it", bit, i)
			}
		}
	}
}

// An exact-match entry matches a key only if the words of its groups (exactMore) are
// equal, too.
func TestEveryBitOfMoreDiffers(t *testing.T) {
	c := &Cache{m: Memory{groupWords: make([]exactMore, 1)}}
	var of exactMore
	d := digest{form: form(len(of)) << 16}
	for i := range of {
		of[i] = ^uint64(0)
	}
	c.m.groupWords[0] = of
	if c.differMore(0, &d, &of) != 0 {
		t.Fatal("equal words differ")
	}
	for i := range of {
		for bit := range 64 {
			c.m.groupWords[0] = of
			c.m.groupWords[0][i] ^= 1 << bit
			if c.differMore(0, &d, &of) == 0 {
				t.Fatalf("bit %d of word %d makes no difference", bit, i)
			}
		}
	}
}

// compareEntries in assembly and compareBase, its Go twin, write the same slots and generations: for equal
// keys, and for keys, unions and forms that differ in one bit. They write no result of another frame.
func TestCompareAgainstTwin(t *testing.T) {
	if !hasCompareAssembly {
		t.Skip("this processor has no assembly of compareEntries")
	}
	c := NewCache(newMemory(t, Sizes{Megaflows: 64, Exact: 64, Masks: 4, Actions: 64}), 1)
	random := rand.New(rand.NewPCG(1, 2))
	var keys [packet.BatchSize]Key
	hits := 0
	for round := range 4000 {
		for i := range c.union {
			c.union[i] = random.Uint64() | random.Uint64()
		}
		from := uint(random.IntN(packet.BatchSize))
		end := from + 1 + uint(random.IntN(int(packet.BatchSize-from)))
		for m := range packet.BatchSize {
			c.frames[m], c.entries[m] = uint8(random.IntN(packet.BatchSize)), uint32(random.IntN(len(c.exact)))
		}
		for m := from; m < end; m++ {
			i, e := c.frames[m], &c.exact[c.entries[m]]
			k, d := &keys[i], &c.digests[i]
			*e = exactEntry{flow: uint64(random.IntN(64)) | random.Uint64()<<32, form: form(random.Uint64())}
			d.form = e.form
			for w := range e.words {
				k[w] = random.Uint64()
				e.words[w] = k[w] & c.union[w]
			}
			switch bit := random.IntN(64); random.IntN(4) {
			case 0:
				k[random.IntN(baseWords)] ^= 1 << bit
			case 1:
				d.form ^= 1 << bit
			case 2:
				k[baseWords] ^= 1 << bit
			}
		}
		for m := range packet.BatchSize {
			c.slots[m], c.expects[m] = 1000+uint32(m), 2000+uint32(m)
		}
		slots, expects := c.slots, c.expects
		c.compareBase(&keys, from, end)
		c.slots, slots = slots, c.slots
		c.expects, expects = expects, c.expects
		compareEntries(end-from, &c.frames[from], &c.entries[from], &keys[0], &c.union, &c.digests[0], &c.exact[0],
			&c.m.Flows[0], &c.slots[from], &c.expects[from])
		if c.slots != slots || c.expects != expects {
			t.Fatalf("round %d, frames %d to %d: slots %v and generations %v, want %v and %v", round, from, end, c.slots, c.expects, slots, expects)
		}
		for m := from; m < end; m++ {
			if c.slots[m] != NoSlot {
				hits++
			}
		}
	}
	if hits < 1000 {
		t.Errorf("only %d equal keys", hits)
	}
}
