// SPDX-License-Identifier: Apache-2.0

package share

import (
	"math/rand"
	"testing"
)

// Ports that take all that they can get of 1,000 units get equal numbers: one port gets half, two
// ports a third each, four ports a fifth each.
func TestPortsGetEqualParts(t *testing.T) {
	for ports, want := range map[uint32]int{1: 500, 2: 333, 4: 200} {
		p := New(1000)
		for range 1000 {
			for port := range ports {
				if p.MayHave(port, 1) {
					p.Add(port, 1)
				}
			}
		}
		for port := range ports {
			if n := p.Own(port); n < want-1 || n > want+1 {
				t.Errorf("%d ports: port %d has %d of 1000 units, want about %d", ports, port, n, want)
			}
		}
	}
}

// Every later port gets its reserved units, however many units earlier ports have taken.
func TestReservedUnitsStayFree(t *testing.T) {
	const limit = 1 << 16
	p := New(limit)
	for port := range uint32(holders) {
		for p.MayHave(port, 1) {
			p.Add(port, 1)
		}
		if n := p.Own(port); n < limit/keptPart/holders {
			t.Fatalf("port %d gets %d units, want at least %d", port, n, limit/keptPart/holders)
		}
		p.Refuse(port)
	}
	if p.Count() > limit {
		t.Errorf("%d units are in use, more than the limit of %d", p.Count(), limit)
	}
	if n := p.Each(func(port uint32, u Use) {
		if u.Limit != u.Used || u.Guarantee != 8 || u.Refused != 1 {
			t.Fatalf("port %d: %+v, want all units used, 8 guaranteed and 1 refusal", port, u)
		}
	}); n != holders {
		t.Errorf("%d refusals, want %d", n, holders)
	}
}

func TestPortsEqualSlowReference(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for range 50 {
		p := New(rng.Intn(1 << 16))
		slow := map[uint32]int{}
		for range 2000 {
			port, n := uint32(rng.Intn(20)), 1+rng.Intn(300)
			if rng.Intn(3) == 0 {
				n = min(n, slow[port])
				p.Add(port, -n)
				slow[port] -= n
			} else if p.MayHave(port, n) {
				p.Add(port, n)
				slow[port] += n
			}
			count, secured := 0, 0
			for _, n := range slow {
				count += n
				secured += min(n, p.floor)
			}
			if p.Count() != count || p.secured != secured || count > p.limit || p.Own(port) != slow[port] {
				t.Fatalf("%d units in use, %d of them reserved; want %d and %d, within the limit of %d", p.Count(), p.secured, count, secured, p.limit)
			}
			for port := range uint32(20) {
				if has := slow[port]; has < p.floor && !p.MayHave(port, p.floor-has) {
					t.Fatalf("port %d with %d units does not get its %d reserved units", port, has, p.floor)
				}
			}
		}
		for port, n := range slow {
			p.Add(port, -n)
		}
		if p.Count()+p.secured+len(p.own) != 0 {
			t.Fatalf("after all units are returned: %+v", p)
		}
	}
}
