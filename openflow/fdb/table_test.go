// SPDX-License-Identifier: Apache-2.0

package fdb

import (
	"math/rand/v2"
	"testing"
	"time"
)

func learned(vlan uint16, port uint32, mac uint64) Learn {
	return Learn{Valid: true, VLAN: vlan, Port: port, MAC: mac}
}

func TestTable(t *testing.T) {
	tab := New(0, 0)
	g := tab.Generation()
	if tab.Learn(Learn{Port: 1, MAC: 1}, 0) || tab.Len() != 0 {
		t.Error("an invalid Learn was learned")
	}
	if !tab.Learn(learned(5, 1, 0xa), 0) || tab.Generation() == g {
		t.Error("Learn of a new address reports no change")
	}
	g = tab.Generation()
	if tab.Learn(learned(5, 1, 0xa), 1) || tab.Generation() != g {
		t.Error("Learn of a known address reports a change")
	}
	if !tab.Learn(learned(5, 2, 0xa), 2) || tab.Generation() == g {
		t.Error("Learn of a moved address reports no change")
	}
	if port, ok := tab.Locate(0, 5, 0xa); !ok || port != 2 {
		t.Errorf("Lookup is %d, %v; want 2", port, ok)
	}
	if _, ok := tab.Locate(0, 6, 0xa); ok {
		t.Error("the address is known in another VLAN")
	}
	tab.Learn(learned(5, 3, 0xb), 2)
	g = tab.Generation()
	if n := tab.Flush(2); n != 1 || tab.Len() != 1 || tab.Generation() == g {
		t.Errorf("Flush removed %d, left %d", n, tab.Len())
	}
	if n := tab.Expire(uint64(DefaultAge) + 1); n != 0 {
		t.Errorf("Expire removed %d too early", n)
	}
	if n := tab.Expire(uint64(DefaultAge) + 2); n != 1 || tab.Len() != 0 {
		t.Errorf("Expire removed %d, left %d", n, tab.Len())
	}
}

func TestTableMakesRoom(t *testing.T) {
	tab := New(4, time.Second)
	tab.Learn(learned(0, 1, 1), 1)
	tab.Learn(learned(0, 1, 2), 2)
	tab.Learn(learned(0, 1, 1), 3)
	tab.Learn(learned(0, 1, 3), 4)
	if _, ok := tab.Locate(0, 0, 2); ok || tab.Len() != 2 {
		t.Errorf("the least recently seen address is still known: %v; %d addresses", ok, tab.Len())
	}
}

// TestTableAgainstAMap compares the table with a map, with evictions at the limit.
// Each address sends nothing for a while before it moves, so that no rule refuses the
// move.
func TestTableAgainstAMap(t *testing.T) {
	type seen struct {
		port uint32
		atNS uint64
	}
	r := rand.New(rand.NewPCG(1, 1))
	const limit, step, age = 20, uint64(moveQuiet), 50 * uint64(moveQuiet)
	tab, slow := New(limit, time.Duration(age)), map[uint64]seen{}
	count := func(port uint32) (n int) {
		for _, s := range slow {
			if s.port == port {
				n++
			}
		}
		return n
	}
	removeOldest := func(port uint32) {
		oldest, at := uint64(0), ^uint64(0)
		for m, s := range slow {
			if s.port == port && s.atNS < at {
				oldest, at = m, s.atNS
			}
		}
		delete(slow, oldest)
	}
	for now := step; now < 5000*step; now += step {
		mac, port := uint64(r.IntN(40)), uint32(r.IntN(4))
		switch r.IntN(10) {
		case 0:
			tab.Expire(now)
			for m, s := range slow {
				if now-s.atNS >= age {
					delete(slow, m)
				}
			}
		case 1:
			tab.Flush(port)
			for m, s := range slow {
				if s.port == port {
					delete(slow, m)
				}
			}
		default:
			tab.Learn(learned(0, port, mac), now)
			_, known := slow[mac]
			delete(slow, mac)
			most := port
			for p := range uint32(4) {
				if count(p) > count(most) || count(p) == count(most) && most != port && p < most {
					most = p
				}
			}
			switch {
			case count(port) >= limit/2:
				removeOldest(port)
			case !known && len(slow) == limit:
				removeOldest(most)
			}
			slow[mac] = seen{port, now}
		}
		for m := range uint64(40) {
			port, ok := tab.Locate(0, 0, m)
			if s, known := slow[m]; known != ok || s.port != port {
				t.Fatalf("step %d: address %d is at port %d, %v; want %+v, %v", now/step, m, port, ok, s, known)
			}
		}
		if got := len(tab.Entries()); got != tab.Len() || got != len(slow) {
			t.Fatalf("step %d: %d entries, Len %d, want %d", now/step, got, tab.Len(), len(slow))
		}
	}
}
