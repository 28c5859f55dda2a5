// SPDX-License-Identifier: Apache-2.0

package megaflows

import (
	"testing"
	"time"

	"weft/control/limits"
	"weft/flowtable"
)

// sizes are cache sizes so small that tests reach the limits.
var sizes = flowtable.Sizes{Megaflows: 1024, Exact: 1024, Masks: 16, Actions: 8192}

// When all megaflows are removed, every port's use is 0.
func TestSharesAreGivenBack(t *testing.T) {
	f := New(sizes)
	var all []*Megaflow
	for i := range 400 {
		key := flowtable.Key{flowtable.WPort: uint64(1+i%3) << 32, flowtable.WIPv4: uint64(i)}
		mask := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WIPv4: 1<<(i%20) | 0xfff<<20}
		m := &Megaflow{Owner: OwnerOf(&key), Actions: make([]flowtable.Action, 1)}
		if f.admit(m, &key, &mask) == Admitted {
			all = append(all, m)
		}
		if len(f.masks) > sizes.Masks {
			t.Fatalf("%d masks", len(f.masks))
		}
	}
	if len(all) < 200 {
		t.Errorf("%d of 400 admitted", len(all))
	}
	for _, m := range all {
		f.forget(m)
	}
	if len(f.masks)+f.maskShares.Count()+f.flowShares.Count()+f.actionShares.Count() != 0 {
		t.Errorf("left: %d masks, %+v, %+v, %+v", len(f.masks), f.maskShares, f.flowShares, f.actionShares)
	}
}

// Long action lists of one port leave entries for the actions of other ports.
func TestActionsAreShared(t *testing.T) {
	f := New(sizes)
	add := func(port uint32, i, actions int) Admission {
		key := flowtable.Key{flowtable.WPort: uint64(port) << 32, flowtable.WIPv4: uint64(i)}
		mask := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WIPv4: ^uint64(0)}
		return f.admit(&Megaflow{Owner: port, Actions: make([]flowtable.Action, actions)}, &key, &mask)
	}
	long := 0
	for i := range 100 {
		if add(1, i, 64) == Admitted {
			long++
		}
	}
	if most := mostActions(sizes); f.actionShares.Own(1) > most/2 || long == 0 || long == 100 {
		t.Errorf("one port has %d actions of %d", f.actionShares.Own(1), most)
	}
	for i := range 10 {
		if add(2, i, 1) != Admitted {
			t.Fatalf("flow %d of another port is refused", i)
		}
	}
}

func TestIdleTimeFollowsTheLoad(t *testing.T) {
	const limit = 1000
	last := Idle
	for count := 0; count <= limit+5; count++ {
		d := idleTime(count, limit)
		switch {
		case d > last:
			t.Fatalf("%d megaflows stay for %v, fewer for %v", count, d, last)
		case count <= limit/2 && d != Idle, count >= limit && d != LeastIdle:
			t.Fatalf("%d of %d megaflows stay for %v", count, limit, d)
		}
		last = d
	}
	if d := idleTime(3*limit/4, limit); d != LeastIdle+(Idle-LeastIdle)/2 {
		t.Errorf("at three quarters: %v", d)
	}
	if d := idleTime(1, 1); d != LeastIdle {
		t.Errorf("of one: %v", d)
	}
}

// The idle timeout of a port's megaflows gets shorter as the port's quota fills.
// Megaflows of other ports keep their timeout.
func TestIdleTimeIsOfWhatRunsOut(t *testing.T) {
	for _, c := range []struct {
		name    string
		masks   int // number of different masks; 0: one
		actions int // number of actions of each megaflow
	}{
		{"one port's share of the slots", 0, 1},
		{"one port's share of the actions", 0, sizes.Actions / 4 * 3 / 100},
		{"one port's share of the masks", 64, 1},
	} {
		f := New(sizes)
		admit := func(port uint64, i int) Admission {
			key := flowtable.Key{flowtable.WPort: port << 32, flowtable.WIPv4: uint64(i)}
			mask := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WIPv4: ^uint64(0)}
			if c.masks > 0 {
				mask[flowtable.WTunID] = uint64(i % c.masks)
			}
			m := &Megaflow{Owner: OwnerOf(&key), Actions: make([]flowtable.Action, c.actions)}
			return f.admit(m, &key, &mask)
		}
		admit(2, 0)
		if d := f.Stays()[2].Idle; d != Idle {
			t.Errorf("%s: %v with one megaflow", c.name, d)
		}
		n := 1
		for n < sizes.Megaflows && admit(1, n) == Admitted && (c.masks == 0 || n < c.masks) {
			n++
		}
		stays := f.Stays()
		least := func(d time.Duration) bool { return d < LeastIdle+LeastIdle/5 }
		if !least(stays[1].Idle) || least(stays[2].Idle) {
			t.Errorf("%s: with %d megaflows the first port's stay for %v, the second's for %v", c.name, n, stays[1].Idle, stays[2].Idle)
		}
	}
}

// The limit row of a port shows the limit at which megaflows are refused, and the
// number of refused megaflows.
func TestMegaflowRowsTellTheLimit(t *testing.T) {
	f := New(sizes)
	refusals := 0
	for i := range 700 {
		key := flowtable.Key{flowtable.WPort: 7 << 32, flowtable.WIPv4: uint64(i)}
		mask := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WIPv4: ^uint64(0)}
		if f.admit(&Megaflow{Owner: 7, Actions: make([]flowtable.Action, 1)}, &key, &mask) == Refused {
			refusals++
		}
	}
	var row limits.Row
	f.LimitRows(func(r limits.Row) {
		if r.Name == "megaflows" && r.Holder == limits.Port(7) {
			row = r
		}
	})
	if refusals == 0 || row.Refused != uint64(refusals) || row.Used != uint64(f.Len()) || row.Limit != row.Used {
		t.Errorf("%d refusals, %d megaflows: %+v", refusals, f.Len(), row)
	}
}
