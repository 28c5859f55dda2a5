// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"strings"
	"testing"

	"weft/api"
	"weft/control/engines"
	"weft/control/pipeline"
	"weft/control/workers/workertest"
	"weft/internal/waitfor"
)

func (f *fakes) add(flows ...string) {
	f.t.Helper()
	if _, err := f.d.bridges.Megaflows().ChangeFlows(api.ChangeFlows{Op: "add", Text: strings.Join(flows, "\n"), File: true}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakes) counts() map[string]string {
	f.t.Helper()
	flows, err := f.d.bridges.Megaflows().DumpFlows("", pipeline.ByName)
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

func (f *fakes) vxlanPorts(n int) {
	f.t.Helper()
	for i := range n {
		if _, err := f.d.ports.Add(fmt.Sprintf("p%d", i+1), []string{"type=vxlan", "vni=1", fmt.Sprint("remote=192.0.2.", i+1)}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// When an engine dies, the next engine gets its megaflows, and their counts are kept.
func TestEngineDies(t *testing.T) {
	f := newFakes(t)
	f.add("udp,tp_dst=1,actions=drop")
	w := f.worker()
	key := workertest.UDPKey(1, 1, 2, 1)
	for range 50 {
		w.Frame(key, 100)
	}
	f.settle()
	dead := f.last()
	_ = dead.Kill()
	waitfor.True(t, "a new engine", func() bool { e := f.d.engines.Current(); return e != nil && e != engines.Client(dead) })
	next := f.worker()
	waitfor.True(t, "the next engine has the megaflow", func() bool {
		ok := false
		next.On(func() { _, ok = next.Lookup(&key) })
		return ok
	})
	for range 30 {
		next.Frame(key, 100)
	}
	f.settle()
	f.want("udp,tp_dst=1", "80/8000")
}

// If the control process is killed, no count is lost. The next control process keeps
// only correct megaflows.
func TestControlDies(t *testing.T) {
	f := newFakes(t)
	f.add("udp,tp_dst=1,actions=drop", "udp,tp_dst=2,actions=drop")
	w := f.worker()
	one, two := workertest.UDPKey(1, 1, 2, 1), workertest.UDPKey(1, 1, 2, 2)
	for range 50 {
		w.Frame(one, 100)
		w.Frame(two, 100)
	}
	f.settle()
	f.want("udp,tp_dst=1", "50/5000")
	var slot uint32
	w.On(func() { slot, _ = w.Lookup(&one) })
	// delete flow 2 from the disk, so that the next control process does not load it
	if err := f.d.store.WriteFlows(nil, []uint32{1}); err != nil {
		t.Fatal(err)
	}
	f.die()
	for range 25 {
		w.Frame(one, 100) // no control process runs at this time
		w.Frame(two, 100)
	}
	f.begin()
	f.want("udp,tp_dst=1", "75/7500")
	w.On(func() {
		if now, ok := w.Lookup(&one); !ok || now != slot {
			t.Errorf("megaflow of slot %d is at %d, %v", slot, now, ok)
		}
		if _, ok := w.Lookup(&two); ok {
			t.Error("a megaflow of a deleted flow is still installed")
		}
	})
	for range 25 {
		w.Frame(one, 100)
	}
	f.settle()
	f.want("udp,tp_dst=1", "100/10000")
	if len(f.engines) != 1 {
		t.Errorf("%d engines", len(f.engines))
	}
}

// Flows and ports survive a restart of control and engine.
func TestRestart(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(3)
	if err := f.d.ports.Delete("p2"); err != nil {
		t.Fatal(err)
	}
	f.add("in_port=p3,actions=p1", "table=3,priority=7,cookie=0x5,ip,nw_dst=10.0.0.0/8,actions=drop")
	before := dumpWithout(t, f.d)
	f.end()
	f.begin()
	if after := dumpWithout(t, f.d); after != before {
		t.Errorf("flows before:\n%s\nafter:\n%s", before, after)
	}
	ports, err := f.d.ports.List("")
	if err != nil || len(ports) != 2 || ports[0].Name != "p1" || ports[1].Name != "p3" || ports[1].Number != 3 {
		t.Errorf("ports after: %+v, %v", ports, err)
	}
	p, err := f.d.ports.Add("p4", []string{"type=vxlan", "vni=9", "remote=192.0.2.1"})
	if err != nil || p.Number != 4 {
		t.Errorf("a new port has number %d: %v", p.Number, err)
	}
}

// dumpWithout returns the dump of all flows without ages and durations, which differ between two dumps.
func dumpWithout(t *testing.T, d *Daemon) string {
	t.Helper()
	flows, err := d.bridges.Megaflows().DumpFlows("", pipeline.ByName)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range flows {
		fmt.Fprintln(&b, f.Table, f.Priority, f.Cookie, f.Match, f.Actions, f.Packets)
	}
	return b.String()
}
