// SPDX-License-Identifier: Apache-2.0

package flowtable

// hasCompareAssembly says that compareEntries is there.
const hasCompareAssembly = true

// compareEntries does the same as compareBase for n frames, and prefetches the Flow of each
// slot. The pointers are to the first elements of arrays; frames and entries are trusted
// indexes. TestLineSizes checks the sizes and offsets that the assembly relies on.
//
//go:noescape
func compareEntries(n uint, frames *uint8, entries *uint32, keys, union *Key, digests *digest, exact *exactEntry, flows *Flow, slots, expects *uint32)
