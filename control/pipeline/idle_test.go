// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"testing"
	"time"

	"weft/flowtable"
)

// Only megaflows without hits expire.
func TestIdleMegaflowsExpire(t *testing.T) {
	f := newRig(t)
	f.add("udp,actions=drop")
	w := f.worker()
	frame := func(port uint32, n uint64) {
		k := udpKey(port, 0, 2, 9)
		k[flowtable.WEthDst] = n<<16 | k[flowtable.WEthDst]&0xffff
		w.Frame(k, 100)
		f.settle()
	}
	f.add("priority=40000,dl_dst=02:00:00:00:00:01,udp,actions=drop") // each address needs its own megaflow because of dl_dst
	frame(1, 0x020000000001)
	frame(1, 0x020000000002)
	// age makes all last hits older.
	age := func(by time.Duration) {
		f.p.mu.Lock()
		defer f.p.mu.Unlock()
		for _, m := range f.p.megaflows.list() {
			f.p.pull(m)
			m.usedNS -= min(m.usedNS, uint64(by))
		}
	}
	age(megaflowIdle * 6 / 10)
	f.p.sweep()
	if n := f.p.megaflows.len(); n != 2 {
		t.Fatalf("%d megaflows before their time", n)
	}
	frame(1, 0x020000000001)
	f.p.sweep() // credits the hit
	age(megaflowIdle / 2)
	f.p.sweep()
	if n := f.p.megaflows.len(); n != 1 {
		t.Errorf("%d megaflows, of which one was hit", n)
	}
	f.want("udp,dl_dst=02:00:00:00:00:01", "2/200")
	f.want("udp", "1/100")
}

func TestIdleTimeFollowsTheLoad(t *testing.T) {
	const limit = 1000
	last := megaflowIdle
	for count := 0; count <= limit+5; count++ {
		d := idleTime(count, limit)
		switch {
		case d > last:
			t.Fatalf("%d megaflows stay for %v, fewer for %v", count, d, last)
		case count <= limit/2 && d != megaflowIdle, count >= limit && d != leastIdle:
			t.Fatalf("%d of %d megaflows stay for %v", count, limit, d)
		}
		last = d
	}
	if d := idleTime(3*limit/4, limit); d != leastIdle+(megaflowIdle-leastIdle)/2 {
		t.Errorf("at three quarters: %v", d)
	}
	if d := idleTime(1, 1); d != leastIdle {
		t.Errorf("of one: %v", d)
	}
}

// The idle time of a port's megaflows shrinks as its quota fills. Other ports keep
// theirs.
func TestIdleTimeIsOfWhatRunsOut(t *testing.T) {
	few := testSizes.Cache
	for _, c := range []struct {
		what    string
		masks   int // number of different masks; 0: one
		actions int // number of actions of each megaflow
	}{
		{"one port's share of the slots", 0, 1},
		{"one port's share of the actions", 0, few.Actions / 4 * 3 / 100},
		{"one port's share of the masks", 64, 1},
	} {
		f := newMegaflows(few)
		admit := func(port uint64, i int) admission {
			key := flowtable.Key{flowtable.WPort: port << 32, flowtable.WIPv4: uint64(i)}
			mask := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WIPv4: ^uint64(0)}
			if c.masks > 0 {
				mask[flowtable.WTunID] = uint64(i % c.masks)
			}
			m := &megaflow{owner: ownerOf(&key), actions: make([]flowtable.Action, c.actions)}
			return f.admit(m, &key, &mask)
		}
		admit(2, 0)
		if d := f.stays()[2]; d != megaflowIdle {
			t.Errorf("%s: %v with one megaflow", c.what, d)
		}
		n := 1
		for n < few.Megaflows && admit(1, n) == admitted && (c.masks == 0 || n < c.masks) {
			n++
		}
		stays := f.stays()
		least := func(d time.Duration) bool { return d < leastIdle+leastIdle/5 }
		if !least(stays[1]) || least(stays[2]) {
			t.Errorf("%s: with %d megaflows the first port's stay for %v, the second's for %v", c.what, n, stays[1], stays[2])
		}
	}
}

// The sweep uses each port's own idle time.
func TestIdleMegaflowsOfAFullPortGoSooner(t *testing.T) {
	f := newRig(t)
	f.add("udp,tp_dst=9,actions=drop", "priority=40000,dl_dst=02:00:00:00:00:01,udp,actions=drop")
	w := f.worker()
	f.change.Lock() // no sweep before all megaflows exist
	for i := range uint32(testSizes.Cache.Megaflows/2 + 20) {
		w.Frame(udpKey(1, 0, i, 9), 100)
		f.settle()
	}
	w.Frame(udpKey(2, 0, 5000, 9), 100)
	f.settle()
	f.p.mu.Lock()
	for _, m := range f.p.megaflows.list() {
		f.p.pull(m)
		m.usedNS -= uint64(leastIdle + time.Second)
	}
	f.p.mu.Unlock()
	f.change.Unlock()
	f.p.sweep()
	f.p.megaflows.mu.Lock()
	defer f.p.megaflows.mu.Unlock()
	if own := f.p.megaflows.flowShares; own.Own(1) != 0 || own.Own(2) != 1 {
		t.Errorf("megaflows left by port: %v", own)
	}
}
