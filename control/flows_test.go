package control

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"weft/api"
	"weft/flowtable"
	"weft/internal/waitfor"
)

// key is that of an IPv4 UDP frame.
func udpKey(port, src, dst uint32, tpDst uint16) flowtable.Key {
	var k flowtable.Key
	k[flowtable.WPort] = uint64(port) << 32
	k[flowtable.WEthDst] = (0x020000000000|uint64(dst))<<16 | 0x0800
	k[flowtable.WEthSrc] = (0x020000000000 | uint64(src)) << 16
	k[flowtable.WIP] = 17<<56 | 64<<40
	k[flowtable.WL4] = 1000<<48 | uint64(tpDst)<<32
	k[flowtable.WIPv4] = uint64(0x0a000000|src)<<32 | uint64(0x0a000000|dst)
	return k
}

func (f *fakes) add(flows ...string) {
	f.t.Helper()
	if _, err := f.d.pipeline.changeFlows(api.ChangeFlows{Op: "add", Text: strings.Join(flows, "\n"), File: true}); err != nil {
		f.t.Fatal(err)
	}
}

// counts maps each flow's actions to its packets and bytes.
func (f *fakes) counts() map[string]string {
	f.t.Helper()
	flows, err := f.d.pipeline.dumpFlows("", byName)
	if err != nil {
		f.t.Fatal(err)
	}
	counts := map[string]string{}
	for _, fl := range flows {
		counts[fl.Match] = fmt.Sprint(fl.Packets, "/", fl.Bytes)
	}
	return counts
}

func (f *fakes) want(match, count string) {
	f.t.Helper()
	if got := f.counts()[match]; got != count {
		f.t.Errorf("flow %q counts %s, want %s; all: %v", match, got, count, f.counts())
	}
}

// vxlanPorts makes ports that need no device.
func (f *fakes) vxlanPorts(n int) {
	f.t.Helper()
	for i := range n {
		if _, err := f.d.addPort(fmt.Sprintf("p%d", i+1), []string{"type=vxlan", "vni=1", fmt.Sprint("remote=192.0.2.", i+1)}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// Every frame counts once: the first of a flow, later ones, those of a second
// miss of the same flow, and those before and after changes of the tables.
func TestCountsAreExact(t *testing.T) {
	f := newFakes(t)
	f.add("udp,tp_dst=1,actions=drop", "udp,tp_dst=2,actions=drop")
	w := f.worker()
	for i := range uint32(100) {
		w.frame(udpKey(1, i%7, 2, 1), 100)
		w.frame(udpKey(1, i%5, 2, 2), 60)
	}
	f.settle()
	f.want("udp,tp_dst=1", "100/10000")
	f.want("udp,tp_dst=2", "100/6000")
	if n := f.d.pipeline.megaflows.len(); n != 2 {
		t.Errorf("%d megaflows for two rules that look at tp_dst alone", n)
	}
	w.on(func() {
		if w.lost > 0 {
			t.Errorf("%d frames missed again", w.lost)
		}
	})

	f.add("priority=40000,udp,tp_dst=1,nw_src=10.0.0.3,actions=drop")
	for i := range uint32(70) {
		w.frame(udpKey(1, i%7, 2, 1), 100)
	}
	f.settle()
	f.want("udp,tp_dst=1", "160/16000")
	f.want("udp,nw_src=10.0.0.3,tp_dst=1", "10/1000")
	if _, err := f.d.pipeline.deleteFlows("udp,nw_src=10.0.0.3", false); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		w.frame(udpKey(1, 3, 2, 1), 100)
	}
	f.settle()
	f.want("udp,tp_dst=1", "170/17000")
}

// A change removes the megaflows it affects, before it returns, and leaves the
// others and their hits alone.
func TestChangeRevalidatesTheAffectedOnly(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(3)
	f.add("in_port=p1,actions=p2", "in_port=p2,actions=p3")
	w := f.worker()
	one, two := udpKey(1, 1, 2, 9), udpKey(2, 1, 2, 9)
	w.frame(one, 100)
	w.frame(two, 100)
	f.settle()
	var kept uint32
	w.on(func() { kept, _ = w.lookup(&two) })

	if _, err := f.d.pipeline.changeFlows(api.ChangeFlows{Op: "modify", Text: "in_port=p1,actions=p3"}); err != nil {
		t.Fatal(err)
	}
	w.on(func() {
		if slot, ok := w.lookup(&one); ok {
			t.Errorf("megaflow %d goes by the old rule", slot)
		}
		slot, ok := w.lookup(&two)
		if !ok || slot != kept || w.cache.Flow(slot).Packets != 1 {
			t.Errorf("the unaffected megaflow: slot %d %v, was %d", slot, ok, kept)
		}
	})
	w.frame(one, 100)
	f.settle()
	f.want("in_port=p1", "2/200")
	f.want("in_port=p2", "1/100")
}

// A change waits for workers that are slow.
func TestChangeWaitsForWorkers(t *testing.T) {
	f := newFakes(t)
	f.add("udp,actions=drop")
	w := f.worker()
	key := udpKey(1, 1, 2, 9)
	w.frame(key, 100)
	f.settle()
	w.stalled.Store(true)
	done := make(chan struct{})
	go func() {
		if _, err := f.d.pipeline.deleteFlows("", false); err != nil {
			t.Error(err)
		}
		close(done)
	}()
	waitfor.True(t, "the megaflow is on its way out", func() bool { return f.d.pipeline.megaflows.len() == 0 })
	select {
	case <-done:
		t.Error("the change returned although the worker still goes by the old rules")
	default:
	}
	w.stalled.Store(false)
	<-done
	w.on(func() {
		if _, ok := w.lookup(&key); ok {
			t.Error("the megaflow is still there")
		}
	})
}

// Beyond the limit of masks frames are executed singly, and count.
func TestMaskLimit(t *testing.T) {
	f := newFakes(t)
	var flows []string
	for bits := 1; bits <= 30; bits++ { // a mask each
		flows = append(flows, fmt.Sprintf("priority=%d,udp,nw_src=10.0.0.0/%d,actions=drop", bits, bits))
	}
	f.add(flows...)
	f.add("priority=100,ip,nw_src=11.0.0.0/8,actions=drop", "priority=0,actions=drop")
	w := f.worker()
	sent := uint64(0)
	for i := range 33 {
		k := udpKey(1, 0, 2, 9)
		k[flowtable.WIPv4] = uint64(0x0a000000) ^ uint64(1)<<(31-i%32)<<32 | 1
		w.frame(k, 100)
		sent++
		f.settle()
	}
	f.d.pipeline.megaflows.mu.Lock()
	if n := len(f.d.pipeline.megaflows.masks); n > testSizes.Cache.Masks {
		t.Errorf("%d masks, at most %d fit", n, testSizes.Cache.Masks)
	}
	f.d.pipeline.megaflows.mu.Unlock()
	packets, _ := uint64(0), 0
	all, err := f.d.pipeline.dumpFlows("", byName)
	if err != nil {
		t.Fatal(err)
	}
	for _, fl := range all {
		packets += fl.Packets
	}
	w.on(func() {
		t.Logf("%d installed, %d executed singly", w.installs, len(w.executed))
		if w.lost > 0 {
			t.Errorf("%d frames lost", w.lost)
		}
	})
	if missed := f.d.pipeline.refusals.Load(); packets != sent {
		t.Errorf("%d frames counted of %d, %d executed singly", packets, sent, missed)
	}
}

// normal learns, floods until it has, and forgets the port with the port.
func TestNormalLearns(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("actions=normal")
	w := f.worker()
	a, b := udpKey(1, 1, 2, 9), udpKey(2, 2, 1, 9)
	w.frame(a, 100)
	f.settle()
	w.frame(b, 100)
	f.settle()
	waitfor.True(t, "the flood is revalidated", func() bool {
		ok := false
		w.on(func() { _, ok = w.lookup(&a) })
		return !ok
	})
	if n := f.d.pipeline.macs.len(); n != 2 {
		t.Errorf("%d addresses learnt", n)
	}
	if err := f.d.deletePort("p2"); err != nil {
		t.Fatal(err)
	}
	if n := f.d.pipeline.macs.len(); n != 1 {
		t.Errorf("%d addresses left without port p2", n)
	}
}

// An engine that dies is replaced; what it counted stays counted, and what it
// knew the next one knows.
func TestEngineDies(t *testing.T) {
	f := newFakes(t)
	f.add("udp,tp_dst=1,actions=drop")
	w := f.worker()
	key := udpKey(1, 1, 2, 1)
	for range 50 {
		w.frame(key, 100)
	}
	f.settle()
	dead := f.last()
	_ = dead.Kill()
	waitfor.True(t, "a new engine", func() bool { e := f.d.engine(); return e != nil && e != engineClient(dead) })
	next := f.worker()
	waitfor.True(t, "the megaflow is there again", func() bool {
		ok := false
		next.on(func() { _, ok = next.lookup(&key) })
		return ok
	})
	for range 30 {
		next.frame(key, 100)
	}
	f.settle()
	f.want("udp,tp_dst=1", "80/8000")
}

// A control process that is killed loses no count, and its successor adopts the
// megaflows that still hold and removes the others.
func TestControlDies(t *testing.T) {
	f := newFakes(t)
	f.add("udp,tp_dst=1,actions=drop", "udp,tp_dst=2,actions=drop")
	w := f.worker()
	one, two := udpKey(1, 1, 2, 1), udpKey(1, 1, 2, 2)
	for range 50 {
		w.frame(one, 100)
		w.frame(two, 100)
	}
	f.settle()
	f.want("udp,tp_dst=1", "50/5000")
	var slot uint32
	w.on(func() { slot, _ = w.lookup(&one) })
	// What the successor does not know: flow 2 is gone from the state.
	if err := f.d.store.ChangeFlows(nil, []uint32{1}); err != nil {
		t.Fatal(err)
	}
	f.die()
	for range 25 {
		w.frame(one, 100) // forwarded while control is away
		w.frame(two, 100)
	}
	f.begin()
	f.want("udp,tp_dst=1", "75/7500")
	w.on(func() {
		if now, ok := w.lookup(&one); !ok || now != slot {
			t.Errorf("megaflow of slot %d is at %d, %v", slot, now, ok)
		}
		if _, ok := w.lookup(&two); ok {
			t.Error("a megaflow of a flow that is gone is still there")
		}
	})
	for range 25 {
		w.frame(one, 100)
	}
	f.settle()
	f.want("udp,tp_dst=1", "100/10000")
	if len(f.engines) != 1 {
		t.Errorf("%d engines", len(f.engines))
	}
}

// Flows and ports survive the end of both processes.
func TestRestart(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(3)
	if err := f.d.deletePort("p2"); err != nil {
		t.Fatal(err)
	}
	f.add("in_port=p3,actions=p1", "table=3,priority=7,cookie=0x5,ip,nw_dst=10.0.0.0/8,actions=drop")
	before := dumpWithout(t, f.d)
	f.end()
	f.begin()
	if after := dumpWithout(t, f.d); after != before {
		t.Errorf("flows before:\n%s\nafter:\n%s", before, after)
	}
	ports, err := f.d.listPorts("")
	if err != nil || len(ports) != 2 || ports[0].Name != "p1" || ports[1].Name != "p3" || ports[1].Number != 3 {
		t.Errorf("ports after: %+v, %v", ports, err)
	}
	p, err := f.d.addPort("p4", []string{"type=vxlan", "vni=9", "remote=192.0.2.1"})
	if err != nil || p.Number != 4 {
		t.Errorf("a new port has number %d: %v", p.Number, err)
	}
}

// dumpWithout is dump-flows without what time changes.
func dumpWithout(t *testing.T, d *Daemon) string {
	t.Helper()
	flows, err := d.pipeline.dumpFlows("", byName)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range flows {
		fmt.Fprintln(&b, f.Table, f.Priority, f.Cookie, f.Match, f.Actions, f.Packets)
	}
	return b.String()
}

// A long list is described a part at a time: whoever wants the lock to change
// something gets it in between.
func TestDescribingLetsOthersIn(t *testing.T) {
	f := newFakes(t)
	f.d.change.Lock()
	defer f.d.change.Unlock()
	got := make(chan struct{})
	seen := 0
	f.d.pipeline.inTurns(2*describeChunk, func(i int) {
		if i != seen {
			t.Fatalf("%d comes after %d others", i, seen)
		}
		seen++
		switch i {
		case 0:
			go func() {
				f.d.pipeline.mu.Lock()
				close(got)
				f.d.pipeline.mu.Unlock()
			}()
			for f.d.pipeline.mu.TryRLock() { // until the other waits for it
				f.d.pipeline.mu.RUnlock()
				runtime.Gosched()
			}
		case describeChunk:
			select {
			case <-got:
			default:
				t.Error("nobody got the lock before the second part")
			}
		}
	})
	if seen != 2*describeChunk {
		t.Errorf("%d described", seen)
	}
}
