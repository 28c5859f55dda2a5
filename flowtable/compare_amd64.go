// SPDX-License-Identifier: Apache-2.0

package flowtable

// hasCompareAssembly is true if compareEntries exists for this architecture.
const hasCompareAssembly = true

// compareEntries compares the keys of n frames with their chosen cache entries. It writes the
// megaflow's slot and generation of each frame to slots and expects, or NoSlot and 0 if the keys
// differ, and prefetches the Flow of each slot. compareBase is its twin in Go.
//
// Each pointer but union is to the first element of an array. compareEntries does not check the
// indexes in frames and entries. TestLineSizes checks the sizes and offsets that the assembly relies on.
//
//go:noescape
func compareEntries(n uint, frames *uint8, entries *uint32, keys, union *Key, digests *digest, exact *exactEntry, flows *Flow, slots, expects *uint32)
