// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"testing"
	"time"

	"weft/control/limits"
	"weft/control/megaflows"
	"weft/control/pipeline/pipelinetest"
	"weft/control/workers/workertest"
	"weft/flowtable"
)

// Only megaflows without hits expire.
func TestIdleMegaflowsExpire(t *testing.T) {
	f := newRig(t)
	f.Add("udp,actions=drop")
	w := f.Worker()
	frame := func(port uint32, n uint64) {
		k := workertest.UDPKey(port, 0, 2, 9)
		k[flowtable.WEthDst] = n<<16 | k[flowtable.WEthDst]&0xffff
		w.Frame(k, 100)
		f.Settle()
	}
	// each address needs its own megaflow, because this flow matches dl_dst
	f.Add("priority=40000,dl_dst=02:00:00:00:00:01,udp,actions=drop")
	frame(1, 0x020000000001)
	frame(1, 0x020000000002)
	// age makes all last hits older.
	age := func(duration time.Duration) {
		f.P.Mu().Lock()
		defer f.P.Mu().Unlock()
		for _, m := range f.P.Index().List() {
			f.P.Pull(m)
			m.UsedNS -= min(m.UsedNS, uint64(duration))
		}
	}
	age(megaflows.Idle * 6 / 10)
	f.P.Sweep()
	if n := f.P.Counts().Megaflows; n != 2 {
		t.Fatalf("%d megaflows before their time", n)
	}
	frame(1, 0x020000000001)
	f.P.Sweep() // credits the hit
	age(megaflows.Idle / 2)
	f.P.Sweep()
	if n := f.P.Counts().Megaflows; n != 1 {
		t.Errorf("%d megaflows, of which one was hit", n)
	}
	f.Want("udp,dl_dst=02:00:00:00:00:01", "2/200")
	f.Want("udp", "1/100")
}

// The sweep applies each port's own idle timeout.
func TestIdleMegaflowsOfAFullPortGoSooner(t *testing.T) {
	f := newRig(t)
	f.Add("udp,tp_dst=9,actions=drop", "priority=40000,dl_dst=02:00:00:00:00:01,udp,actions=drop")
	w := f.Worker()
	tx := f.Configuration.Begin() // no sweep before all megaflows exist
	for i := range uint32(pipelinetest.Sizes.Cache.Megaflows/2 + 20) {
		w.Frame(workertest.UDPKey(1, 0, i, 9), 100)
		f.Settle()
	}
	w.Frame(workertest.UDPKey(2, 0, 5000, 9), 100)
	f.Settle()
	f.P.Mu().Lock()
	for _, m := range f.P.Index().List() {
		f.P.Pull(m)
		m.UsedNS -= uint64(megaflows.LeastIdle + time.Second)
	}
	f.P.Mu().Unlock()
	tx.Commit()
	f.P.Sweep()
	if one, two := f.Used("megaflows", limits.Port(1)), f.Used("megaflows", limits.Port(2)); one != 0 || two != 1 {
		t.Errorf("megaflows left: %d of port 1, %d of port 2", one, two)
	}
}
