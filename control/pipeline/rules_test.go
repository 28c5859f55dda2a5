// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"testing"

	"weft/control/counters"
)

// One change may replace all flows of full tables.
func TestReplaceFlowsOfFullTables(t *testing.T) {
	f := newRig(t)
	f.vxlanPorts(1)
	f.change.Lock()
	for range counters.MaxRules - 1 { // occupies all rule slots but one
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
