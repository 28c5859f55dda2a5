// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package flowtable

const hasCompareAssembly = false

func compareEntries(n uint, frames *uint8, entries *uint32, keys, union *Key, digests *digest, exact *exactEntry, flows *Flow, slots, expects *uint32) {
	panic("flowtable: no assembly here")
}
