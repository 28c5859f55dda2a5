// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"slices"
)

// batch collects changes of the state that the switch has not got yet. It has at most
// one change for each address, because a later change replaces an earlier one. The
// addresses in one list of Changes therefore need no order.
type batch struct {
	endpoint  netip.Addr
	nets      []Net
	ports     []Port
	removed   map[addressKey]int64 // generation of each removed address
	addresses map[addressKey]Address
	unknown   []UnknownAddress
}

type addressKey struct {
	vni uint32
	mac uint64
}

func newBatch() *batch {
	return &batch{removed: map[addressKey]int64{}, addresses: map[addressKey]Address{}}
}

func (b *batch) empty() bool {
	return !b.endpoint.IsValid() && len(b.nets)+len(b.ports)+len(b.removed)+len(b.addresses)+len(b.unknown) == 0
}

func (b *batch) set(a Address) { b.addresses[addressKey{a.VNI, a.MAC}] = a }

// remove removes an address. If the batch gives the address to another port under a
// larger generation, that entry stays.
func (b *batch) remove(vni uint32, mac uint64, generation int64) {
	k := addressKey{vni, mac}
	if a, ok := b.addresses[k]; ok && a.Generation <= generation {
		delete(b.addresses, k)
	}
	b.removed[k] = max(b.removed[k], generation)
}

// clear makes the switch forget everything about a VNI.
func (b *batch) clear(vni uint32) {
	b.nets = append(b.nets, Net{VNI: vni, Gone: true})
	maps.DeleteFunc(b.addresses, func(k addressKey, _ Address) bool { return k.vni == vni })
	maps.DeleteFunc(b.removed, func(k addressKey, _ int64) bool { return k.vni == vni })
	b.unknown = slices.DeleteFunc(b.unknown, func(a UnknownAddress) bool { return a.VNI == vni })
}

// release removes the addresses of the local port with this name from the batch.
func (b *batch) release(port string) {
	maps.DeleteFunc(b.addresses, func(_ addressKey, a Address) bool { return a.Port == port })
}

func (b *batch) changes() *Changes {
	c := &Changes{Endpoint: b.endpoint, Nets: b.nets, Ports: b.ports, Unknown: b.unknown}
	for k, generation := range b.removed {
		c.Removed = append(c.Removed, RemovedAddress{VNI: k.vni, MAC: k.mac, Generation: generation})
	}
	for _, a := range b.addresses {
		c.Addresses = append(c.Addresses, a)
	}
	return c
}
