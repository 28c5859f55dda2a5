// SPDX-License-Identifier: Apache-2.0

package flowtable

import "testing"

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
	d := digest{n: uint32(len(of))}
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
