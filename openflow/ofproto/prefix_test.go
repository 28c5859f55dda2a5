// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"math/rand/v2"
	"testing"

	"weft/openflow"
	"weft/openflow/openflowtest"
)

// slowPrefixes is a reference implementation of a prefixTrie: a list.
type slowPrefixes []struct {
	v      openflow.Value128
	length uint8
}

func (s slowPrefixes) lookup(v openflow.Value128) (lengths [3]uint64) {
	for _, p := range s {
		if v.And(prefixMask(p.length)) == p.v {
			lengths[p.length/64] |= 1 << (p.length % 64)
		}
	}
	return lengths
}

// checkTrie compares look-ups in a changing trie with slowPrefixes.
func checkTrie(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 4))
	width := openflowtest.Pick(r, uint8(16), 32, 128)
	few := openflow.Value128{r.Uint64(), r.Uint64()}
	value := func() openflow.Value128 {
		v := openflow.Value128{r.Uint64(), r.Uint64()}
		if keep := uint8(r.IntN(int(width) + 1)); r.IntN(4) > 0 {
			m := prefixMask(keep)
			v = few.And(m).Or(v.AndNot(m))
		}
		return v.And(prefixMask(width))
	}
	var trie prefixTrie
	var slow slowPrefixes
	for range 60 {
		if len(slow) > 0 && r.IntN(5) < 2 {
			i := r.IntN(len(slow))
			trie.remove(slow[i].v, slow[i].length)
			slow = append(slow[:i], slow[i+1:]...)
		} else {
			length := uint8(1 + r.IntN(int(width)))
			v := value()
			trie.add(v, length)
			slow = append(slow, struct {
				v      openflow.Value128
				length uint8
			}{v.And(prefixMask(length)), length})
		}
		for range 10 {
			v := value()
			if len(slow) > 0 && r.IntN(2) == 0 {
				p := slow[r.IntN(len(slow))]
				v = p.v.Or(v.AndNot(prefixMask(p.length)))
			}
			got := trie.lookup(v)
			if want := slow.lookup(v); got.lengths != want {
				t.Fatalf("seed %d: %x has prefixes %x, want %x", seed, v, got.lengths, want)
			}
			if got.looked > width {
				t.Fatalf("seed %d: the look-up used %d bits of a field of %d", seed, got.looked, width)
			}
			other := value().AndNot(prefixMask(got.looked)).Or(v.And(prefixMask(got.looked)))
			if want := slow.lookup(other); got.lengths != want {
				t.Fatalf("seed %d: %x and %x agree on the %d bits looked at, but have prefixes %x and %x", seed, v, other, got.looked, got.lengths, want)
			}
		}
	}
	for _, p := range slow {
		trie.remove(p.v, p.length)
	}
	if len(trie.nodes) > 0 {
		t.Fatalf("seed %d: an empty trie has %d nodes", seed, len(trie.nodes))
	}
}

func TestTrieFindsWhatAListFinds(t *testing.T) {
	for seed := range uint64(300) {
		checkTrie(t, seed)
	}
}

func FuzzTrie(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { checkTrie(t, seed) })
}
