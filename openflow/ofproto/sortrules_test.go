// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"weft/openflow"
)

// Rules that do not match the sort field come last, in ascending and in descending
// order.
func TestSortRules(t *testing.T) {
	p := pipelineOf(t, "priority=5,tcp,tp_src=90,cookie=1,actions=1", "priority=7,tcp,tp_src=100,cookie=2,actions=1",
		"priority=9,udp,tp_src=80,cookie=3,actions=1", "priority=1,ipv6,ipv6_src=fe80::2,cookie=4,actions=1",
		"priority=1,ipv6,ipv6_src=fe80::1,cookie=5,actions=1")
	for _, tt := range []struct {
		keys []string
		want []uint64 // cookies in the expected order
	}{
		{nil, []uint64{3, 2, 1, 4, 5}},
		{[]string{"priority"}, []uint64{4, 5, 1, 2, 3}},
		{[]string{"-priority", "ipv6_src"}, []uint64{3, 2, 1, 5, 4}},
		{[]string{"tcp_src"}, []uint64{1, 2, 3, 4, 5}},
		{[]string{"-tp_src"}, []uint64{2, 1, 3, 4, 5}},
		{[]string{"-ipv6_src"}, []uint64{4, 5, 3, 2, 1}},
		{[]string{"nw_proto", "-tcp_src"}, []uint64{2, 1, 3, 4, 5}},
	} {
		var keys []SortKey
		for _, text := range tt.keys {
			k, err := ParseSortKey(text)
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, k)
		}
		rules := p.Select(&openflow.FlowMod{Command: openflow.Delete, Table: openflow.TableAll})
		SortRules(rules, keys)
		var got []uint64
		for _, r := range rules {
			got = append(got, r.Cookie)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("sorted by %v: %v, want %v", tt.keys, got, tt.want)
		}
	}
	for _, text := range []string{"size", "-size"} {
		var wrong *openflow.ParseError
		if _, err := ParseSortKey(text); !errors.As(err, &wrong) || wrong.Word != "size" || !strings.Contains(wrong.Expected, "a match field to sort by") {
			t.Errorf("%s: error %v", text, err)
		}
	}
}
