// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"testing"
	"time"

	"weft/control/megaflows"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/flowtable"
)

// A revalidation that takes longer than revalidateTime removes the megaflows of ports whose
// translations are costly. It still translates the megaflows of other ports.
func TestCostlyMegaflowsAreRemoved(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(3)
	f.Add("in_port=1,actions=3\nin_port=2,actions=3\n")
	for port := range uint32(2) {
		for n := range uint16(3) {
			f.Worker().Frame(workertest.UDPKey(port+1, 0, 2, n), 100)
		}
	}
	f.Settle()
	owned := map[uint32]int{}
	for _, m := range f.P.Index().List() {
		owned[m.Owner]++
	}
	if owned[1] == 0 || owned[2] == 0 {
		t.Fatalf("megaflows by port: %v", owned)
	}
	f.age(-time.Hour) // even in a slow test, all megaflows then count as used
	stale := f.P.StaleOf(1)
	for _, m := range stale {
		if m.Owner != 1 {
			t.Errorf("a megaflow of port %d is removed", m.Owner)
		}
	}
	if len(stale) != owned[1] {
		t.Errorf("%d megaflows are removed, want %d", len(stale), owned[1])
	}
}

// A revalidation that takes longer than revalidateTime removes the megaflows that got no frame for
// unusedTime.
func TestUnusedMegaflowsAreRemoved(t *testing.T) {
	f := newRig(t)
	f.Add("priority=10,udp,tp_dst=9,actions=drop\npriority=20,udp,tp_dst=9,nw_src=10.0.0.0/24,actions=drop\n")
	send := func(src uint32) {
		f.Worker().Frame(workertest.UDPKey(1, src, 2, 9), 100)
		f.Settle()
	}
	send(1)
	send(1 << 9)
	if n := f.P.Counts().Megaflows; n != 2 {
		t.Fatalf("%d megaflows, want 2", n)
	}
	tx := f.Configuration.Begin() // no sweep counts the new frame
	defer tx.Commit()
	f.age(2 * time.Second)
	send(1)
	stale := f.P.StaleOf(7) // a port without megaflows
	if len(stale) != 1 || sourceOf(stale[0])&0xffff != 1<<9 {
		t.Errorf("%d megaflows are removed, want the one without a new frame", len(stale))
	}
}

func sourceOf(m *megaflows.Megaflow) uint64 {
	key := m.Key()
	return key[flowtable.WIPv4] >> 32
}

// A batch of misses ends after the translation during which its time limit passes.
func TestMissesHaveATime(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	f.Add("in_port=1,actions=2\n")
	misses := make([]datapath.Upcall, 3)
	for i := range misses {
		misses[i] = datapath.Upcall{Op: datapath.UpMiss, Arg: uint32(i), Key: workertest.UDPKey(1, 0, 2, uint16(i))}
	}
	if n := f.P.AnswerWithin(-time.Nanosecond, misses); n != 1 {
		t.Errorf("%d misses are answered without time, want 1", n)
	}
	if n := f.P.AnswerWithin(time.Hour, misses[1:]); n != 2 {
		t.Errorf("%d misses are answered within an hour, want 2", n)
	}
	f.End()
}
