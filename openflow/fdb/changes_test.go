// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"net/netip"
	"slices"
	"testing"
)

// Beyond the limit, every address counts as changed.
func TestChangesAreBounded(t *testing.T) {
	var c Changes
	for i := range uint64(maxAddressChanges) {
		c.add(RefOfMAC(i))
		c.add(RefOfMAC(i))
	}
	if c.All() || c.Empty() {
		t.Errorf("%d changes: all %v, empty %v", maxAddressChanges, c.All(), c.Empty())
	}
	if c.add(RefOfMAC(1 << 47)); !c.All() {
		t.Error("too many changes are not all")
	}
}

// References of different kinds differ.
func TestAddressRefsDiffer(t *testing.T) {
	refs := []Ref{RefOfMAC(1<<48 - 1), RefOfMAC(1), RefOfIP(netip.MustParseAddr("0.0.0.1")), RefOfIP(netip.MustParseAddr("255.255.255.255")),
		RefOfIP(netip.MustParseAddr("::1")), RefOfIP(netip.MustParseAddr("1::")), RefOfIP(netip.MustParseAddr("fd00::1")), RefOfNetwork(1), AnyRef}
	slices.Sort(refs)
	if len(slices.Compact(refs)) != 9 {
		t.Errorf("%x", refs)
	}
}
