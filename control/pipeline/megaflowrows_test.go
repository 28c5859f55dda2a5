// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"testing"

	"weft/control/limits"
	"weft/flowtable"
)

// A port's limit row shows the limit at which megaflows are refused, and counts
// refusals.
func TestMegaflowRowsTellTheLimit(t *testing.T) {
	f := newMegaflows(testSizes.Cache)
	refusals := 0
	for i := range 700 {
		key := flowtable.Key{flowtable.WPort: 7 << 32, flowtable.WIPv4: uint64(i)}
		mask := flowtable.Key{flowtable.WPort: ^uint64(0), flowtable.WIPv4: ^uint64(0)}
		if f.admit(&megaflow{owner: 7, actions: make([]flowtable.Action, 1)}, &key, &mask) == refused {
			refusals++
		}
	}
	var row limits.Row
	f.limitRows(func(r limits.Row) {
		if r.Name == "megaflows" && r.Holder == limits.Port(7) {
			row = r
		}
	})
	if refusals == 0 || row.Refused != uint64(refusals) || row.Used != uint64(f.len()) || row.Limit != row.Used {
		t.Errorf("%d refusals, %d megaflows: %+v", refusals, f.len(), row)
	}
}
