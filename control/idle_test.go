package control

import (
	"testing"
	"time"

	"weft/flowtable"
)

// A megaflow without hits goes, at its time; one that is hit stays with its counts.
// The fuller the caches are, the sooner.
func TestIdleMegaflowsExpire(t *testing.T) {
	f := newFakes(t)
	f.add("udp,actions=drop")
	w := f.worker()
	frame := func(port uint32, n uint64) {
		k := udpKey(port, 0, 2, 9)
		k[flowtable.WEthDst] = n<<16 | k[flowtable.WEthDst]&0xffff
		w.frame(k, 100)
		f.settle()
	}
	f.add("priority=40000,dl_dst=02:00:00:00:00:01,udp,actions=drop") // every address is looked at
	frame(1, 0x020000000001)
	frame(1, 0x020000000002)
	// Time goes by: what was made or hit so far was so long ago.
	age := func(by time.Duration) {
		f.d.mu.Lock()
		defer f.d.mu.Unlock()
		for _, m := range f.d.megaflows.list() {
			f.d.pull(m)
			m.usedNS -= min(m.usedNS, uint64(by))
		}
	}
	age(megaflowIdle - time.Second)
	f.d.sweep()
	if n := f.d.megaflows.len(); n != 2 {
		t.Fatalf("%d megaflows before their time", n)
	}
	frame(1, 0x020000000001)
	f.d.sweep() // credits the hit
	age(2 * time.Second)
	f.d.sweep()
	if n := f.d.megaflows.len(); n != 1 {
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
