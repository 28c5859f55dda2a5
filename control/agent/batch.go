// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"slices"
)

// batch collects changes for the switch. A later change of an address replaces the
// earlier one in the batch, so the order of changes does not matter.
type batch struct {
	endpoint  netip.Addr
	nets      []Net
	ports     []Port
	removed   map[addressKey]int64 // generation of each removed address
	addresses []Address            // elements with MAC noMAC do not count
	index     map[addressKey]int   // index of each address in addresses
	unknown   []UnknownAddress
	usual     int // number of addresses of the last batch, at most keptMost
}

type addressKey struct {
	vni uint32
	mac uint64
}

// noMAC marks an element of batch.addresses that was removed. Real addresses have only
// 48 bits.
const noMAC = 1 << 63

func newBatch() *batch { return &batch{} }

// keptMost is the largest number of entries with which the next batch uses a map again. A map with more
// entries is discarded, because a map never shrinks.
const keptMost = 1024

// next returns an empty batch that takes over the maps of b, which saves allocations. The switch may still
// use the slices of b. The caller must not use b itself any more.
func (b *batch) next() *batch {
	n := &batch{usual: min(len(b.addresses), keptMost)}
	if len(b.addresses) <= keptMost {
		n.index = b.index
		clear(n.index)
	}
	if len(b.removed) <= keptMost {
		n.removed = b.removed
		clear(n.removed)
	}
	return n
}

func (b *batch) empty() bool {
	return !b.endpoint.IsValid() && len(b.nets)+len(b.ports)+len(b.removed)+len(b.index)+len(b.unknown) == 0
}

func (b *batch) grow(n int) {
	b.addresses = slices.Grow(b.addresses, n)
	if b.index == nil {
		b.index = make(map[addressKey]int, n)
	}
}

func (b *batch) set(a Address) {
	k := addressKey{a.VNI, a.MAC}
	if i, ok := b.index[k]; ok {
		b.addresses[i] = a
		return
	}
	if b.index == nil {
		b.index = map[addressKey]int{}
	}
	if b.addresses == nil {
		b.addresses = make([]Address, 0, b.usual)
	}
	b.index[k] = len(b.addresses)
	b.addresses = append(b.addresses, a)
}

func (b *batch) drop(match func(a *Address) bool) {
	for k, i := range b.index {
		if a := &b.addresses[i]; match(a) {
			a.MAC = noMAC
			delete(b.index, k)
		}
	}
}

// remove records the removal of an address, unless the batch has a newer declaration of
// the address (a larger generation).
func (b *batch) remove(vni uint32, mac uint64, generation int64) {
	k := addressKey{vni, mac}
	if i, ok := b.index[k]; ok && b.addresses[i].Generation <= generation {
		b.addresses[i].MAC = noMAC
		delete(b.index, k)
	}
	if b.removed == nil {
		b.removed = map[addressKey]int64{}
	}
	b.removed[k] = max(b.removed[k], generation)
}

func (b *batch) clear(vni uint32) {
	b.nets = append(b.nets, Net{VNI: vni, Gone: true})
	b.drop(func(a *Address) bool { return a.VNI == vni })
	maps.DeleteFunc(b.removed, func(k addressKey, _ int64) bool { return k.vni == vni })
	b.unknown = slices.DeleteFunc(b.unknown, func(a UnknownAddress) bool { return a.VNI == vni })
}

func (b *batch) release(port string) {
	b.drop(func(a *Address) bool { return a.Port == port })
}

func (b *batch) changes() *Changes {
	c := &Changes{Endpoint: b.endpoint, Nets: b.nets, Ports: b.ports, Unknown: b.unknown}
	if len(b.removed) > 0 {
		c.Removed = make([]RemovedAddress, 0, len(b.removed))
	}
	for k, generation := range b.removed {
		c.Removed = append(c.Removed, RemovedAddress{VNI: k.vni, MAC: k.mac, Generation: generation})
	}
	c.Addresses = b.addresses
	if len(b.index) < len(b.addresses) {
		c.Addresses = slices.DeleteFunc(b.addresses, func(a Address) bool { return a.MAC == noMAC })
	}
	return c
}
