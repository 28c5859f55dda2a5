// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"testing"

	"weft/openflow"
)

// An action ct in a bucket or an action set is executed. In a set that also sends the frame, only the
// sending action is executed.
func TestCTInActionSet(t *testing.T) {
	for _, c := range []struct{ actions, want string }{
		{"ct(commit,nat(dst=10.0.0.1:80),table=2)", "ct(commit,table=2,nat(dst=10.0.0.1:80))"},
		{"ct(commit),set_field:1->reg0", "set_field:0x1->reg0,ct(commit)"},
		{"ct(commit),2", "output:2"},
	} {
		mod, err := openflow.ParseGroupMod("group_id=1,type=select,bucket="+c.actions, openflow.GroupAdd, nil)
		if err != nil {
			t.Fatalf("%s: %v", c.actions, err)
		}
		if got := openflow.FormatActions(mod.Group.Buckets[0].Set, nil); got != c.want {
			t.Errorf("%s: executes %q, want %q", c.actions, got, c.want)
		}
	}
}
