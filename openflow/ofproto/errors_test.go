// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"strings"
	"testing"

	"weft/openflow"
)

// The tables refuse some groups and meters that the parser accepts. The error names the wrong
// word, as the parser's errors do.
func TestTableErrorsNameTheWord(t *testing.T) {
	p := NewTables(Limits{Rules: 2})
	groups := func(text string, c openflow.GroupCommand) error {
		mod, err := openflow.ParseGroupMod(text, c, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.ApplyGroups([]openflow.GroupMod{mod}, 0)
		return err
	}
	meters := func(text string, c openflow.MeterCommand) error {
		mod, err := openflow.ParseMeterMod(text, c)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = p.ApplyMeters([]openflow.MeterMod{mod}, 0)
		return err
	}
	flow := func(text string) error {
		_, err := p.Apply([]openflow.FlowMod{mustMod(t, openflow.Add, text)}, 0)
		return err
	}
	wide := "meter=9,kbps,bands=" + strings.Repeat("type=drop,rate=1,", openflow.MaxBands+1)
	for _, err := range []error{flow("in_port=1,actions=1"), flow("table=4,in_port=1,actions=1"),
		groups("group_id=1,type=all,bucket=1", openflow.GroupAdd), meters("meter=1,kbps,bands=type=drop,rate=1", openflow.MeterAdd)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{flow("in_port=2,actions=1"), "table 0: expected at most 2 flows in all tables"},
		{flow("check_overlap,dl_src=00:00:00:00:00:01,actions=1"), "check_overlap: expected no flow of priority 32768 in table 0 that overlaps, and there is in_port=1"},
		{flow("in_port=1,actions=group:7"), "group:7: there is no such group; expected add-group first"},
		{flow("in_port=1,actions=meter:7"), "meter:7: there is no such meter; expected add-meter first"},
		{groups("group_id=1,type=all,bucket=1", openflow.GroupAdd), "group 1: expected a number that no group has"},
		{groups("group_id=7,type=all,bucket=1", openflow.GroupModify), "group 7: there is no such group; expected the number of one"},
		{meters("meter=1,kbps,bands=type=drop,rate=1", openflow.MeterAdd), "meter 1: expected a number that no meter has"},
		{meters("meter=7,kbps,bands=type=drop,rate=1", openflow.MeterModify), "meter 7: there is no such meter; expected the number of one"},
		{meters(wide, openflow.MeterAdd), "meter 9: expected at most"},
	} {
		if tt.err == nil || !strings.HasPrefix(tt.err.Error(), tt.want) {
			t.Errorf("error %v, want %s", tt.err, tt.want)
		}
	}
}
