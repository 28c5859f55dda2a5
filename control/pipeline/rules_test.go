package pipeline

import (
	"testing"

	"weft/control/counters"
)

// A change may replace every flow of a full table: those that go have their places
// until no megaflow counts for them any more.
func TestReplaceFlowsOfFullTables(t *testing.T) {
	f := newRig(t)
	f.vxlanPorts(1)
	f.change.Lock()
	for range counters.MaxRules - 1 { // as if the tables had that many
		f.p.rules.take()
	}
	f.change.Unlock()
	f.add("table=1,actions=drop")
	f.add("table=1,actions=1")
	f.add("table=1,actions=drop")
	saved, err := f.disk.Load()
	if err != nil || len(saved.Flows) != 1 {
		t.Errorf("%d flows saved, %v; want one", len(saved.Flows), err)
	}
	f.die()
	f.begin()
	f.want("", "0/0")
}
