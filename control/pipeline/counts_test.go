// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"fmt"
	"runtime"
	"testing"

	"weft/control/limits"
	"weft/control/pipeline"
	"weft/control/pipeline/pipelinetest"
	"weft/control/workers/workertest"
	"weft/flowtable"
	"weft/internal/waitfor"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// Every frame is counted exactly once, even with misses and changes of the tables.
func TestCountsAreExact(t *testing.T) {
	f := newRig(t)
	f.Add("udp,tp_dst=1,actions=drop", "udp,tp_dst=2,actions=drop")
	w := f.Worker()
	for i := range uint32(100) {
		w.Frame(workertest.UDPKey(1, i%7, 2, 1), 100)
		w.Frame(workertest.UDPKey(1, i%5, 2, 2), 60)
	}
	f.Settle()
	f.Want("udp,tp_dst=1", "100/10000")
	f.Want("udp,tp_dst=2", "100/6000")
	if n := f.P.Counts().Megaflows; n != 2 {
		t.Errorf("%d megaflows for two rules that look at tp_dst alone", n)
	}
	w.On(func() {
		if w.Lost > 0 {
			t.Errorf("%d frames missed again", w.Lost)
		}
	})

	f.Add("priority=40000,udp,tp_dst=1,nw_src=10.0.0.3,actions=drop")
	for i := range uint32(70) {
		w.Frame(workertest.UDPKey(1, i%7, 2, 1), 100)
	}
	f.Settle()
	f.Want("udp,tp_dst=1", "160/16000")
	f.Want("udp,nw_src=10.0.0.3,tp_dst=1", "10/1000")
	f.Apply(openflow.Delete, "udp,nw_src=10.0.0.3")
	for range 10 {
		w.Frame(workertest.UDPKey(1, 3, 2, 1), 100)
	}
	f.Settle()
	f.Want("udp,tp_dst=1", "170/17000")
}

// A table counts its look-ups, whether they find a flow or not. The counts stay when a flow is
// deleted.
func TestLookupsOfTablesCount(t *testing.T) {
	f := newRig(t)
	f.Add("udp,tp_dst=1,actions=goto_table:3", "udp,tp_dst=2,actions=drop", "table=3,udp,nw_src=10.0.0.3,actions=drop")
	w := f.Worker()
	send := func(dst uint16, frames int) {
		for range frames {
			w.Frame(workertest.UDPKey(1, 3, 2, dst), 100)
		}
		for range frames {
			w.Frame(workertest.UDPKey(1, 4, 2, dst), 100)
		}
		f.Settle()
	}
	want := func(table uint8, count ofproto.TableLookups) {
		t.Helper()
		f.Rules("") // pulls the counts
		f.P.Read(func(tables *ofproto.Tables) {
			if got := tables.Lookups(table); got != count {
				t.Errorf("table %d has %+v, want %+v", table, got, count)
			}
		})
	}
	send(1, 5)
	send(2, 2)
	send(9, 3)
	want(0, ofproto.TableLookups{All: 20, Matched: 14})
	want(3, ofproto.TableLookups{All: 10, Matched: 5})
	f.Apply(openflow.Delete, "table=3")
	send(1, 5)
	want(0, ofproto.TableLookups{All: 30, Matched: 24})
	want(3, ofproto.TableLookups{All: 20, Matched: 5})
}

// A change of flows removes exactly the megaflows whose translations it changes.
func TestChangeRevalidatesTheAffectedOnly(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(3)
	f.Add("in_port=p1,actions=p2", "in_port=p2,actions=p3")
	w := f.Worker()
	one, two := workertest.UDPKey(1, 1, 2, 9), workertest.UDPKey(2, 1, 2, 9)
	w.Frame(one, 100)
	w.Frame(two, 100)
	f.Settle()
	var kept uint32
	w.On(func() { kept, _ = w.Lookup(&two) })

	f.Apply(openflow.Modify, "in_port=p1,actions=p3")
	w.On(func() {
		if slot, ok := w.Lookup(&one); ok {
			t.Errorf("megaflow %d still has the actions of the old rule", slot)
		}
		slot, ok := w.Lookup(&two)
		if !ok || slot != kept || w.Cache.Flow(slot).Packets != 1 {
			t.Errorf("the unaffected megaflow is in slot %d (present: %v), want slot %d", slot, ok, kept)
		}
	})
	w.Frame(one, 100)
	f.Settle()
	f.Want("in_port=p1", "2/200")
	f.Want("in_port=p2", "1/100")
}

// A change waits for slow workers.
func TestChangeWaitsForWorkers(t *testing.T) {
	f := newRig(t)
	f.Add("udp,actions=drop")
	w := f.Worker()
	key := workertest.UDPKey(1, 1, 2, 9)
	w.Frame(key, 100)
	f.Settle()
	w.Stalled.Store(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Apply(openflow.Delete, "table=255")
	}()
	waitfor.True(t, "the megaflow is being removed", func() bool { return f.P.Counts().Megaflows == 0 })
	select {
	case <-done:
		t.Error("the change returned although the worker still uses the old rules")
	default:
	}
	w.Stalled.Store(false)
	<-done
	w.On(func() {
		if _, ok := w.Lookup(&key); ok {
			t.Error("the megaflow is still there")
		}
	})
}

// If no mask is free for a megaflow, control executes and counts the frames.
func TestMaskLimit(t *testing.T) {
	f := newRig(t)
	var flows []string
	for bits := 1; bits <= 30; bits++ { // each flow needs its own mask
		flows = append(flows, fmt.Sprintf("priority=%d,udp,nw_src=10.0.0.0/%d,actions=drop", bits, bits))
	}
	f.Add(flows...)
	f.Add("priority=100,ip,nw_src=11.0.0.0/8,actions=drop", "priority=0,actions=drop")
	w := f.Worker()
	sent := uint64(0)
	for i := range 33 {
		k := workertest.UDPKey(1, 0, 2, 9)
		k[flowtable.WIPv4] = uint64(0x0a000000) ^ uint64(1)<<(31-i%32)<<32 | 1
		w.Frame(k, 100)
		sent++
		f.Settle()
	}
	if n := f.Used("masks", limits.All()); n > uint64(pipelinetest.Sizes.Cache.Masks) {
		t.Errorf("%d masks, at most %d fit", n, pipelinetest.Sizes.Cache.Masks)
	}
	packets, _ := uint64(0), 0
	for _, fl := range f.Rules("") {
		packets += fl.Packets
	}
	w.On(func() {
		t.Logf("%d installed, %d executed singly", w.Installs, len(w.Executed))
		if w.Lost > 0 {
			t.Errorf("%d frames lost", w.Lost)
		}
	})
	if missed := f.P.Counts().Refused; packets != sent {
		t.Errorf("%d frames counted of %d, %d executed singly", packets, sent, missed)
	}
}

// The action normal learns addresses, floods, and forgets the addresses of a deleted
// port.
func TestNormalLearns(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	f.Add("actions=normal")
	w := f.Worker()
	a, b := workertest.UDPKey(1, 1, 2, 9), workertest.UDPKey(2, 2, 1, 9)
	w.Frame(a, 100)
	f.Settle()
	w.Frame(b, 100)
	f.Settle()
	waitfor.True(t, "the flood is revalidated", func() bool {
		ok := false
		w.On(func() { _, ok = w.Lookup(&a) })
		return !ok
	})
	if n := f.P.Addresses().Len(); n != 2 {
		t.Errorf("%d addresses learned", n)
	}
	f.DeletePort(2)
	if n := f.P.Addresses().Len(); n != 1 {
		t.Errorf("%d addresses left without port p2", n)
	}
}

// A change of flows does not wait for the end of a long dump of flows.
func TestDescribingLetsOthersIn(t *testing.T) {
	f := newRig(t)
	tx := f.Configuration.Begin()
	defer tx.Commit()
	got := make(chan struct{})
	seen := 0
	f.P.InTurns(tx, 2*pipeline.ReadChunk, func(i int) {
		if i != seen {
			t.Fatalf("flow %d comes after %d flows", i, seen)
		}
		seen++
		switch i {
		case 0:
			go func() {
				f.P.Mu().Lock()
				close(got)
				f.P.Mu().Unlock()
			}()
			for f.P.Mu().TryRLock() { // until the change waits for the lock
				f.P.Mu().RUnlock()
				runtime.Gosched()
			}
		case pipeline.ReadChunk:
			select {
			case <-got:
			default:
				t.Error("the lock was not free before the second chunk")
			}
		}
	})
	if seen != 2*pipeline.ReadChunk {
		t.Errorf("%d flows described", seen)
	}
}
