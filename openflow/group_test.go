// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// ParseGroupMod and FormatGroup do the same as ovs-ofctl of Open vSwitch 3.1, whose output is in "shown". If
// shown is empty, the text must be refused.
func TestGroupText(t *testing.T) {
	tests := []struct{ text, shown string }{
		{"group_id=1,type=all,bucket=output:1,bucket=output:2", "group_id=1,type=all,bucket=bucket_id:0,actions=output:1,bucket=bucket_id:1,actions=output:2"},
		{"group_id=1,type=select,bucket=weight:10,actions=output:1,bucket=weight=5,output:2", "group_id=1,type=select,bucket=bucket_id:0,weight:10,actions=output:1,bucket=bucket_id:1,weight:5,actions=output:2"},
		{"group_id=1,type=select,bucket=output:1,bucket=bucket_id=7,weight:0,output:2", "group_id=1,type=select,bucket=bucket_id:0,actions=output:1,bucket=bucket_id:7,weight:0,actions=output:2"},
		{"group_id=1,type=fast_failover,bucket=watch_port:1,actions=1,bucket=watch_group:2,2", "group_id=1,type=ff,bucket=bucket_id:0,watch_port:1,actions=output:1,bucket=bucket_id:1,watch_group:2,actions=output:2"},
		{"group_id=1 type=all bucket=1", "group_id=1,type=all,bucket=bucket_id:0,actions=output:1"},
		{"group_id=4294967040,type=all", "group_id=4294967040,type=all"},
		{"group_id=1,type=select,selection_method=hash,fields(ip_src,tcp_src),bucket=1", "group_id=1,type=select,selection_method=hash,fields(ip_src,tcp_src),bucket=bucket_id:0,actions=output:1"},
		{"group_id=1,type=select,selection_method=dp_hash,selection_method_param=5,bucket=1", "group_id=1,type=select,selection_method=dp_hash,selection_method_param=5,bucket=bucket_id:0,actions=output:1"},
		{"group_id=1,type=all,bucket=drop", "group_id=1,type=all,bucket=bucket_id:0,actions=drop"},
		{"group_id=1,type=all,bucket=actions=", "group_id=1,type=all,bucket=bucket_id:0,actions=drop"},
		{"group_id=1,type=all,bucket=actions=set_field:1->reg0,resubmit(,5)", "group_id=1,type=all,bucket=bucket_id:0,actions=set_field:0x1->reg0,resubmit(,5)"},
		{"group_id=1,type=all,bucket=actions=group:2", "group_id=1,type=all,bucket=bucket_id:0,actions=group:2"},
		{"group_id=1,type=indirect,bucket=output:1,bucket=output:2", ""},
		{"group_id=1,type=fast_failover,bucket=actions=1", ""},
		{"group_id=1,bucket=1", ""}, {"type=all,bucket=1", ""}, {"group_id=all,type=all,bucket=1", ""},
		{"group_id=4294967041,type=all,bucket=1", ""}, {"group_id=1,type=all,bucket=weight:5,1", ""},
		{"group_id=1,type=select,selection_method=foo,bucket=1", ""}, {"group_id=1,type=nosuch,bucket=1", ""},
		{"group_id=1,type=all,bucket=", ""}, {"group_id=1,type=all,nosuch=5,bucket=1", ""},
		{"group_id=1,type=all,bucket=bucket_id:1,1,bucket=bucket_id:1,2", ""}, {"group_id=1,type=all,bucket=write_metadata:9,1", ""},
		{"group_id=1,type=all,buckets=1", ""},
	}
	for _, tt := range tests {
		mod, err := ParseGroupMod(tt.text, GroupAdd, nil)
		if tt.shown == "" {
			var pe *ParseError
			if !errors.As(err, &pe) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, want a ParseError", tt.text, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("ParseGroupMod refuses %s: %v", tt.text, err)
			continue
		}
		shown := FormatGroup(&mod.Group, nil)
		if shown != tt.shown {
			t.Errorf("%s\n got %s\nwant %s", tt.text, shown, tt.shown)
		}
		if again, err := ParseGroupMod(shown, GroupAdd, nil); err != nil || !reflect.DeepEqual(again, mod) {
			t.Errorf("%s: parsing the formatted group gives %+v, error %v", shown, again, err)
		}
	}
	mods, err := ParseGroupMods(strings.NewReader("# two\nadd group_id=1,type=all\n\ndelete group_id=all\ngroup_id=3,type=all,bucket=fly"), GroupAdd, nil)
	if err == nil || !strings.HasPrefix(err.Error(), `line 5: "fly"`) {
		t.Errorf("parsing a file of groups: %v, %v", mods, err)
	}
}

func TestMeterText(t *testing.T) {
	tests := []struct{ text, shown string }{
		{"meter=1,kbps,band=type=drop,rate=1000", "meter=1 kbps bands=type=drop rate=1000"},
		{"meter=1,kbps,burst,bands=type=drop,rate=1000,burst_size=100", "meter=1 kbps burst bands=type=drop rate=1000 burst_size=100"},
		{"meter=1 pktps stats band=type=drop rate=5", "meter=1 pktps stats bands=type=drop rate=5"},
		{"meter=1,pktps,bands=type=drop,rate=5 type=drop,rate=7", "meter=1 pktps bands=type=drop rate=5 type=drop rate=7"},
		{"meter=4294901760,pktps,band=type=drop,rate=5", "meter=4294901760 pktps bands=type=drop rate=5"},
		{"meter=1,pktps,kbps,band=type=drop,rate=5", ""}, {"meter=1,band=type=drop,rate=5", ""}, {"meter=1,pktps,band=type=drop", ""},
		{"meter=1,pktps", ""}, {"meter=1,pktps,band=rate=5", ""}, {"meter=1,pktps,band=type=dscp_remark,rate=5,prec_level=2", "meter=1 pktps bands=type=dscp_remark rate=5 prec_level=2"},
		{"meter=1,pktps,band=type=drop,rate=5,burst_size=5", ""}, {"meter=1,pktps,burst,band=type=drop,rate=5", ""},
		{"meter=0,pktps,band=type=drop,rate=5", ""}, {"pktps,band=type=drop,rate=5", ""}, {"meter=1,pktps,band=type=drop,rate=0", ""},
		{"meter=1,pktps,band=type=drop,rate=5,band=type=drop,rate=7", ""}, {"meter=1,nosuch,band=type=drop,rate=5", ""},
		{"meter=all,pktps,band=type=drop,rate=5", ""},
	}
	for _, tt := range tests {
		mod, err := ParseMeterMod(tt.text, MeterAdd)
		if tt.shown == "" {
			if err == nil {
				t.Errorf("ParseMeterMod accepts %s", tt.text)
			}
			continue
		}
		if err != nil {
			t.Errorf("ParseMeterMod refuses %s: %v", tt.text, err)
			continue
		}
		if got := FormatMeter(&mod.Meter); got != tt.shown {
			t.Errorf("%s\n got %s\nwant %s", tt.text, got, tt.shown)
		}
		if again, err := ParseMeterMod(tt.shown, MeterAdd); err != nil || !reflect.DeepEqual(again, mod) {
			t.Errorf("%s: parsing the formatted group gives %+v, error %v", tt.shown, again, err)
		}
	}
}
