// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"testing"

	"weft/flowtable"
)

// A port with many masks or megaflows leaves another port its share.
func TestOnePortLeavesRoom(t *testing.T) {
	f := newRig(t)
	var flows []string
	for bits := 1; bits <= 30; bits++ {
		flows = append(flows, fmt.Sprintf("priority=%d,udp,nw_src=10.0.0.0/%d,tp_src=%d/0x%x,actions=drop", bits, bits, 1<<(bits%16), 0xffff<<(bits%16)&0xffff))
	}
	f.add(flows...)
	f.add("priority=100,in_port=2,udp,nw_ttl=64,actions=drop")
	w := f.worker()
	for i := range 700 {
		k := udpKey(1, 0, 2, 9)
		k[flowtable.WIPv4] ^= uint64(1) << (32 + i%30)
		k[flowtable.WL4] = uint64(i*2654435761) << 48
		k[flowtable.WIPv6Src] = uint64(i) // a field that no rule matches
		w.Frame(k, 100)
		f.settle()
	}
	m := f.p.megaflows
	m.mu.Lock()
	if own := m.maskShares.Own(1); own > testSizes.Cache.Masks/2+narrowMasks {
		t.Errorf("one port has %d masks of %d", own, testSizes.Cache.Masks)
	}
	if own := m.flowShares.Own(1); own > testSizes.Cache.Megaflows/2 {
		t.Errorf("one port has %d megaflows of %d", own, testSizes.Cache.Megaflows)
	}
	before := len(m.masks)
	m.mu.Unlock()
	k := udpKey(2, 0, 2, 9)
	w.Frame(k, 100)
	f.settle()
	w.On(func() {
		if _, ok := w.Lookup(&k); !ok {
			t.Errorf("another port's flow finds no room behind %d masks", before)
		}
		if w.Lost > 0 {
			t.Errorf("%d frames missed again", w.Lost)
		}
	})
	if n := len(f.counts()); n != 31 {
		t.Errorf("%d flows", n)
	}
	f.want("udp,in_port=2,nw_ttl=64", "1/100")
}

// Removing all megaflows returns every port's use to 0.
func TestSharesAreGivenBack(t *testing.T) {
	f := newMegaflows(testSizes.Cache)
	var all []*megaflow
	for i := range 400 {
		key := flowtable.Key{flowtable.WPort: uint64(1+i%3) << 32, flowtable.WIPv4: uint64(i)}
		mask := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WIPv4: 1<<(i%20) | 0xfff<<20}
		m := &megaflow{owner: ownerOf(&key), actions: make([]flowtable.Action, 1)}
		if f.admit(m, &key, &mask) == admitted {
			all = append(all, m)
		}
		if len(f.masks) > testSizes.Cache.Masks {
			t.Fatalf("%d masks", len(f.masks))
		}
	}
	if len(all) < 200 {
		t.Errorf("%d of 400 admitted", len(all))
	}
	for _, m := range all {
		f.forget(m)
	}
	if len(f.index)+len(f.masks)+f.maskShares.Count()+f.flowShares.Count()+f.actionShares.Count() != 0 {
		t.Errorf("left: %d masks, %+v, %+v, %+v", len(f.masks), f.maskShares, f.flowShares, f.actionShares)
	}
}

// Long action lists of one port leave room for other ports.
func TestActionsAreShared(t *testing.T) {
	f := newMegaflows(testSizes.Cache)
	add := func(port uint32, i, actions int) admission {
		key := flowtable.Key{flowtable.WPort: uint64(port) << 32, flowtable.WIPv4: uint64(i)}
		mask := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WIPv4: ^uint64(0)}
		return f.admit(&megaflow{owner: port, actions: make([]flowtable.Action, actions)}, &key, &mask)
	}
	long := 0
	for i := range 100 {
		if add(1, i, 64) == admitted {
			long++
		}
	}
	if most := mostActions(testSizes.Cache); f.actionShares.Own(1) > most/2 || long == 0 || long == 100 {
		t.Errorf("one port has %d actions of %d", f.actionShares.Own(1), most)
	}
	for i := range 10 {
		if add(2, i, 1) != admitted {
			t.Fatalf("flow %d of another port is refused", i)
		}
	}
}
