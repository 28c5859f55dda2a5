// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"testing"

	"weft/control/counters"
)

// One change may replace all flows of full tables.
func TestReplaceFlowsOfFullTables(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(1)
	tx := f.Configuration.Begin()
	for range counters.MaxRules - 1 { // occupies all rule slots but one
		f.P.TakeRow()
	}
	tx.Commit()
	f.Add("table=1,actions=drop")
	f.Add("table=1,actions=1")
	f.Add("table=1,actions=drop")
	saved, err := f.Disk.Load()
	if err != nil || len(saved.Flows) != 1 {
		t.Errorf("%d flows saved, %v; want one", len(saved.Flows), err)
	}
	f.Die()
	f.Begin()
	f.Want("", "0/0")
}
