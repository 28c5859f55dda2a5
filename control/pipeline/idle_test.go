// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"testing"
	"time"

	"weft/control/limits"
	"weft/control/megaflows"
	"weft/control/pipeline/pipelinetest"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/flowtable"
)

// A sweep removes only megaflows that got no frame during their idle timeout.
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
	f.age(megaflows.Idle * 6 / 10)
	f.P.Sweep()
	if n := f.P.Counts().Megaflows; n != 2 {
		t.Fatalf("%d megaflows before their time", n)
	}
	frame(1, 0x020000000001)
	f.P.Sweep() // credits the hit
	f.age(megaflows.Idle / 2)
	f.P.Sweep()
	if n := f.P.Counts().Megaflows; n != 1 {
		t.Errorf("%d megaflows, of which one was hit", n)
	}
	f.Want("udp,dl_dst=02:00:00:00:00:01", "2/200")
	f.Want("udp", "1/100")
}

// If a port has many megaflows, a megaflow with a single frame expires sooner than one with two
// frames.
func TestMegaflowsOfOneFrameGoSooner(t *testing.T) {
	f := newRig(t)
	f.Add("priority=40000,dl_dst=02:00:00:00:00:01,udp,actions=drop", "udp,actions=drop")
	tx := f.Configuration.Begin() // no sweep before all frames have come
	few, many := uint32(3), uint32(pipelinetest.Sizes.Cache.Megaflows/64+1)
	frame := func(port, dst uint32) {
		f.Worker().Frame(workertest.UDPKey(port, 3, dst, 9), 100)
		f.Settle()
	}
	for dst := range many {
		if frame(1, dst); dst < few {
			frame(2, 5000+dst)
		}
	}
	frame(1, 1)
	f.age(megaflows.Idle * 6 / 10)
	tx.Commit()
	f.P.Sweep()
	left := map[uint32]int{}
	for _, m := range f.P.Index().List() {
		left[m.Owner]++
	}
	if left[1] != 1 || left[2] != int(few) {
		t.Errorf("%d megaflows stay, want 1, and %d of the port with few, want %d", left[1], left[2], few)
	}
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

// A sweep handles all parts of the megaflows: it removes the idle ones, and keeps the recirc_ids of the
// others.
func TestSweepHandlesEachPart(t *testing.T) {
	sizes := pipelinetest.Sizes
	defer func() { pipelinetest.Sizes = sizes }()
	pipelinetest.Sizes.Cache.Megaflows, pipelinetest.Sizes.Cache.Actions = 4*megaflows.PartSlots, 16*megaflows.PartSlots
	f := newRig(t)
	f.VXLANPorts(1)
	// each address needs its own megaflow, because a flow matches dl_dst
	f.Add("priority=40000,dl_dst=02:00:00:00:00:01,udp,actions=drop", "udp,tp_dst=9,actions=ct(table=1,zone=1)",
		"udp,tp_dst=8,actions=ct(table=2,zone=1)")
	tx := f.Configuration.Begin() // no sweep before all megaflows exist
	for i := range uint32(megaflows.PartSlots + 100) {
		f.install(workertest.UDPKey(1, 3, 2+i, 9))
	}
	f.install(workertest.UDPKey(1, 3, 2, 8)) // in the last part
	list := f.P.Index().List()
	if n := f.P.Recircs().Len(); len(list) != megaflows.PartSlots+101 || n != 2 {
		t.Fatalf("%d megaflows with %d recirc_ids, want %d with 2", len(list), n, megaflows.PartSlots+101)
	}
	f.age(megaflows.Idle + time.Second)
	f.P.Mu().Lock()
	list[len(list)-1].UsedNS += uint64(time.Hour)
	f.P.Mu().Unlock()
	tx.Commit()
	f.P.Sweep()
	f.P.Sweep() // the second sweep collects unused recirc_ids
	if got := f.P.Index().List(); len(got) != 1 || got[0] != list[len(list)-1] {
		t.Errorf("%d megaflows after the sweep, want the used one", len(got))
	}
	if n := f.P.Recircs().Len(); n != 1 {
		t.Errorf("%d recirc_ids after the sweep, want that of the used megaflow", n)
	}
}

// install installs the megaflow of a frame with this key.
func (f *rig) install(key flowtable.Key) {
	f.P.Answer(f.P.Workers(), []datapath.Upcall{{Op: datapath.UpMiss, Key: key}})
}
