// SPDX-License-Identifier: Apache-2.0

package flowtable

// hasCompareAssembly is true if compareEntries exists for this architecture.
const hasCompareAssembly = true

// compareEntries compares the keys of n frames, each with one entry of the exact-match cache. For a
// frame whose key equals that of the entry, it writes the slot of the entry's megaflow to "slots", and
// the generation in the entry to "expects". For any other frame it writes NoSlot and 0. It prefetches
// the Flow of each slot. compareBase does the same in Go.
//
// Each pointer except "union" points to the first element of an array. compareEntries does not check the
// indexes in "frames" and "entries". TestLineSizes checks the sizes and offsets on which the assembly
// relies.
//
//go:noescape
func compareEntries(n uint, frames *uint8, entries *uint32, keys, union *Key, digests *digest, exact *exactEntry, flows *Flow, slots, expects *uint32)
