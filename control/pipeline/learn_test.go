package pipeline

import (
	"testing"

	"weft/api"
	"weft/flowtable"
	"weft/internal/waitfor"
)

// The first frame teaches before it goes on, later ones by their megaflow's
// statistics; a change that deletes the learner's flows is learnt again.
func TestLearning(t *testing.T) {
	f := newRig(t)
	f.vxlanPorts(3)
	f.add("actions=learn(table=10,idle_timeout=60,eth_dst=eth_src,output:in_port),resubmit(,10)")
	w := f.worker()
	there, back := udpKey(1, 1, 2, 9), udpKey(2, 2, 1, 9)
	w.Frame(there, 100)
	f.settle()
	f.want("dl_dst=02:00:00:00:00:01", "0/0")
	for range 5 {
		w.Frame(back, 100)
	}
	f.settle()
	f.want("dl_dst=02:00:00:00:00:01", "5/500")
	f.want("dl_dst=02:00:00:00:00:02", "0/0")
	f.want("", "6/600")
	// The first direction was translated before the second was learnt.
	for range 3 {
		w.Frame(there, 100)
	}
	f.settle()
	f.want("dl_dst=02:00:00:00:00:02", "3/300")

	if _, err := f.p.DeleteFlows("table=10", false); err != nil {
		t.Fatal(err)
	}
	w.Frame(there, 100)
	f.settle()
	waitfor.True(t, "an address is learnt again", func() bool { _, ok := f.counts()["dl_dst=02:00:00:00:00:01"]; return ok })
}

// A megaflow that looked at none of the changed tables is left alone, and what
// it learns is not saved.
func TestLearntFlowsAreNotSaved(t *testing.T) {
	f := newRig(t)
	f.vxlanPorts(2)
	f.add("in_port=p1,actions=learn(table=10,eth_dst=eth_src,load:1->reg0),p2")
	f.worker().Frame(udpKey(1, 1, 2, 9), 100)
	f.settle()
	f.want("dl_dst=02:00:00:00:00:01", "0/0")
	saved, err := f.disk.Load()
	if err != nil || len(saved.Flows) != 1 {
		t.Errorf("%d flows saved, %v; want the learner alone", len(saved.Flows), err)
	}
	if _, err := f.p.ChangeFlows(api.ChangeFlows{Op: "add", Text: "table=10,in_port=p2,actions=drop"}); err != nil {
		t.Fatal(err)
	}
	if n := f.p.megaflows.len(); n != 1 {
		t.Errorf("%d megaflows after a change of another table, want 1", n)
	}
}

// Frames that come together teach no more than their action's limit allows.
func TestLearnLimitHoldsForManyFrames(t *testing.T) {
	f := newRig(t)
	f.vxlanPorts(2)
	f.add("in_port=p1,actions=learn(table=10,limit=2,cookie=7,eth_dst=eth_src,load:1->reg0),p2")
	const frames = 5
	f.change.Lock() // nothing is learnt meanwhile
	for i := range uint32(frames) {
		f.worker().Frame(udpKey(1, 100+i, 2, 9), 100)
	}
	waitfor.True(t, "all wait to be learnt from", func() (all bool) {
		w := f.worker()
		w.On(func() { all = len(w.Frames) == frames && w.Upcalls.Done() == w.Upcalls.Publish() })
		return all
	})
	f.change.Unlock()
	f.settle()
	if flows, err := f.p.DumpFlows("table=10", ByName); err != nil || len(flows) != 2 {
		t.Errorf("%d flows learnt, %v; want 2", len(flows), err)
	}
}

// Frames that taught nothing because of a limit do so once there is room again.
func TestLearnLimitIsLookedAtAgain(t *testing.T) {
	f := newRig(t)
	f.vxlanPorts(2)
	f.add("in_port=p1,actions=learn(table=10,limit=1,cookie=7,eth_dst=eth_src,load:1->reg0),p2")
	w := f.worker()
	first, second := udpKey(1, 1, 2, 9), udpKey(1, 3, 2, 9)
	for _, key := range []flowtable.Key{first, second} {
		w.Frame(key, 100)
		f.settle()
	}
	if _, learnt := f.counts()["dl_dst=02:00:00:00:00:03"]; learnt {
		t.Fatal("more is learnt than the limit allows")
	}
	if _, err := f.p.DeleteFlows("table=10", false); err != nil {
		t.Fatal(err)
	}
	w.Frame(second, 100) // whose megaflow has not changed, but for what it teaches
	waitfor.True(t, "there is room again, and it is taken", func() bool { _, ok := f.counts()["dl_dst=02:00:00:00:00:03"]; return ok })
}
