// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"testing"

	"weft/control/workers/workertest"
	"weft/flowtable"
	"weft/internal/waitfor"
	"weft/openflow"
)

// Learn actions add flows before the first frame is forwarded. Later frames refresh
// these flows, or add them again if they were deleted.
func TestLearning(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(3)
	f.Add("actions=learn(table=10,idle_timeout=60,eth_dst=eth_src,output:in_port),resubmit(,10)")
	w := f.Worker()
	there, back := workertest.UDPKey(1, 1, 2, 9), workertest.UDPKey(2, 2, 1, 9)
	w.Frame(there, 100)
	f.Settle()
	f.Want("dl_dst=02:00:00:00:00:01", "0/0")
	for range 5 {
		w.Frame(back, 100)
	}
	f.Settle()
	f.Want("dl_dst=02:00:00:00:00:01", "5/500")
	f.Want("dl_dst=02:00:00:00:00:02", "0/0")
	f.Want("", "6/600")
	// Megaflows that were installed before a flow was learned use the flow too.
	for range 3 {
		w.Frame(there, 100)
	}
	f.Settle()
	f.Want("dl_dst=02:00:00:00:00:02", "3/300")

	f.Apply(openflow.Delete, "table=10")
	w.Frame(there, 100)
	f.Settle()
	waitfor.True(t, "an address is learned again", func() bool { _, ok := f.Counts()["dl_dst=02:00:00:00:00:01"]; return ok })
}

// A change of one table keeps a megaflow that uses only other tables. Learned flows are
// not saved.
func TestLearnedFlowsAreNotSaved(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	f.Add("in_port=p1,actions=learn(table=10,eth_dst=eth_src,load:1->reg0),p2")
	f.Worker().Frame(workertest.UDPKey(1, 1, 2, 9), 100)
	f.Settle()
	f.Want("dl_dst=02:00:00:00:00:01", "0/0")
	saved, err := f.Disk.Load()
	if err != nil || len(saved.Flows) != 1 {
		t.Errorf("%d flows saved, %v; want only the flow with the learn action", len(saved.Flows), err)
	}
	f.Add("table=10,in_port=p2,actions=drop")
	if n := f.P.Counts().Megaflows; n != 1 {
		t.Errorf("%d megaflows after a change of another table, want 1", n)
	}
}

// Frames that arrive at the same time do not exceed the flow limit of their learn action.
func TestLearnLimitHoldsForManyFrames(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	f.Add("in_port=p1,actions=learn(table=10,limit=2,cookie=7,eth_dst=eth_src,load:1->reg0),p2")
	const frames = 5
	tx := f.Configuration.Begin() // nothing is learned while this is held
	for i := range uint32(frames) {
		f.Worker().Frame(workertest.UDPKey(1, 100+i, 2, 9), 100)
	}
	waitfor.True(t, "all frames wait in the learn queue", func() (complete bool) {
		w := f.Worker()
		w.On(func() { complete = len(w.Frames) == frames && w.Upcalls.Done() == w.Upcalls.Publish() })
		return complete
	})
	tx.Commit()
	f.Settle()
	if flows := f.Rules("table=10"); len(flows) != 2 {
		t.Errorf("%d flows learned, want 2", len(flows))
	}
}

// A frame whose flow is refused at the limit of its learn action adds the flow after
// another learned flow has expired.
func TestLearnLimitIsLookedAtAgain(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(2)
	f.Add("in_port=p1,actions=learn(table=10,limit=1,cookie=7,eth_dst=eth_src,load:1->reg0),p2")
	w := f.Worker()
	first, second := workertest.UDPKey(1, 1, 2, 9), workertest.UDPKey(1, 3, 2, 9)
	for _, key := range []flowtable.Key{first, second} {
		w.Frame(key, 100)
		f.Settle()
	}
	if _, learned := f.Counts()["dl_dst=02:00:00:00:00:03"]; learned {
		t.Fatal("more flows are learned than the limit allows")
	}
	f.Apply(openflow.Delete, "table=10")
	w.Frame(second, 100) // hits the megaflow that was installed at the limit
	waitfor.True(t, "the flow is learned once the limit allows it", func() bool { _, ok := f.Counts()["dl_dst=02:00:00:00:00:03"]; return ok })
}

// A frame may add a flow that it matches itself. It is then forwarded by the flows that
// it matched before, as in Open vSwitch's test "learning action - self-modifying flow".
func TestTeachingFrameGoesOnByWhatItMatched(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(3)
	f.Add("priority=1,actions=learn(table=0,priority=9,eth_src,output:in_port),p2")
	w := f.Worker()
	key := workertest.UDPKey(1, 1, 2, 9)
	w.Frame(key, 100)
	f.Settle()
	f.Want("", "1/100")
	f.Want("dl_src=02:00:00:00:00:01", "0/0")
	w.Frame(key, 100)
	f.Settle()
	f.Want("", "1/100")
	f.Want("dl_src=02:00:00:00:00:01", "1/100")
}

// While a frame waits, an equal frame adds a flow. The waiting frame then matches this
// flow.
func TestSecondWaitingFrameMatchesTheLearnedFlow(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(3)
	f.Add("priority=1,actions=learn(table=0,priority=9,eth_src,output:in_port),p2")
	w, key := f.Worker(), workertest.UDPKey(1, 1, 2, 9)
	tx := f.Configuration.Begin() // nothing is learned while this is held
	w.Frame(key, 100)
	w.Frame(key, 100)
	waitfor.True(t, "both frames wait in the learn queue", func() (complete bool) {
		w.On(func() { complete = len(w.Frames) == 2 && w.Upcalls.Done() == w.Upcalls.Publish() })
		return complete
	})
	tx.Commit()
	f.Settle()
	f.Want("", "1/100")
	f.Want("dl_src=02:00:00:00:00:01", "1/100")
}
