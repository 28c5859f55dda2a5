// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"bytes"
	"testing"

	"weft/packet"
)

// ReadTunOptions returns the options that AppendTunOptions has encoded, for every length. It does not read
// the actions after them.
func TestTunOptionsThroughActions(t *testing.T) {
	raw := make([]byte, MaxTunOptions)
	for i := range raw {
		raw[i] = byte(i + 1)
	}
	for n := 0; n <= MaxTunOptions; n += 4 {
		list := AppendTunOptions(nil, raw[:n])
		var o TunOptions
		if got := ReadTunOptions(append(list, Action{Op: OpOutput}), &o); got != len(list) || !bytes.Equal(o.Raw(), raw[:n]) {
			t.Fatalf("%d bytes: %d of %d actions, options %x", n, got, len(list), o.Raw())
		}
	}
}

// ReadTunOptions sets no options if the length is invalid or the list is too short.
func TestInvalidTunOptions(t *testing.T) {
	for _, list := range [][]Action{
		{{Op: OpTunOptions, U16: 8}},
		{{Op: OpTunOptions, U16: 7}, {Op: OpData}},
		{{Op: OpTunOptions, U16: 256}},
	} {
		o := TunOptions{Len: 4}
		if n := ReadTunOptions(list, &o); n != 1 || o.Len != 0 {
			t.Errorf("%v: %d actions, %d bytes of options", list, n, o.Len)
		}
	}
}

// The hash of Geneve options depends on each byte, on the length and on the key.
func TestOptionsHash(t *testing.T) {
	k := OptionsKey{3, 5}
	if k.Hash(nil) != 0 {
		t.Error("no options have a hash")
	}
	seen := map[uint64]bool{}
	add := func(kind string, number int, h uint64) {
		if h == 0 || seen[h] {
			t.Errorf("%s %d: hash %#x is 0 or not new", kind, number, h)
		}
		seen[h] = true
	}
	raw := make([]byte, MaxTunOptions)
	for n := 4; n <= len(raw); n += 4 {
		add("length", n, k.Hash(raw[:n]))
	}
	for i := range raw {
		raw[i] = 1
		add("byte", i, k.Hash(raw))
		raw[i] = 0
	}
	add("key", 0, (&OptionsKey{3, 6}).Hash(raw))
	add("key", 1, (&OptionsKey{4, 5}).Hash(raw))
}

// A megaflow whose mask has every word is found, and only by its own key.
func TestMaskOfEveryWord(t *testing.T) {
	c := NewCache(newMemory(t, Sizes{Megaflows: 8, Exact: 8, Masks: 2, Actions: 8}), 1)
	var key, mask Key
	for i := range key {
		key[i], mask[i] = uint64(i)+1, ^uint64(0)
	}
	if got := c.Install(3, &key, &mask, []Action{{Op: OpOutput, U32: 1}}); got != Installed {
		t.Fatal(got)
	}
	var keys [packet.BatchSize]Key
	var slots [packet.BatchSize]uint32
	for i := range keys {
		keys[i] = key
		if i < KeyWords && i > 0 {
			keys[i][i] ^= 1 << 63
		}
	}
	for range 2 { // first among the megaflows, then in the exact-match cache
		c.Lookup(&keys, ^uint32(0), &slots, new(LookupCounts))
		for i, slot := range slots {
			if other := i < KeyWords && i > 0; (slot == 3) == other {
				t.Errorf("frame %d: slot %d", i, slot)
			}
		}
	}
}
