// SPDX-License-Identifier: Apache-2.0

package share

import (
	"math/rand"
	"testing"
)

// One port gets half of what is not kept for others, two a third each.
func TestPortsTakeWhatTheyLeaveFree(t *testing.T) {
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
				t.Errorf("of %d ports one has %d of 1000", ports, n)
			}
		}
	}
}

// Ports that take all they may, one after another, leave each further one what is kept
// for it; and all of that is there.
func TestWhatIsKeptStays(t *testing.T) {
	const limit = 1 << 16
	p := New(limit)
	for port := range uint32(Holders) {
		for p.MayHave(port, 1) {
			p.Add(port, 1)
		}
		if n := p.Own(port); n < limit/keptPart/Holders {
			t.Fatalf("port %d has %d", port, n)
		}
		p.Refuse(port)
	}
	if p.Count() > limit {
		t.Errorf("%d of %d", p.Count(), limit)
	}
	if n := p.Each(func(port uint32, u Use) {
		if u.Limit != u.Used || u.Guarantee != 8 || u.Refused != 1 {
			t.Fatalf("port %d: %+v", port, u)
		}
	}); n != Holders {
		t.Errorf("%d refused", n)
	}
}

// Counts against a slow sum, and never more than there are.
func TestSharesTwin(t *testing.T) {
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
				t.Fatalf("%d counted, %d of what is kept; expected %d, %d of %d", p.Count(), p.secured, count, secured, p.limit)
			}
			for port := range uint32(20) {
				if has := slow[port]; has < p.floor && !p.MayHave(port, p.floor-has) {
					t.Fatalf("port %d with %d does not get what is kept for it", port, has)
				}
			}
		}
		for port, n := range slow {
			p.Add(port, -n)
		}
		if p.Count()+p.secured+len(p.own) != 0 {
			t.Fatalf("left: %+v", p)
		}
	}
}
