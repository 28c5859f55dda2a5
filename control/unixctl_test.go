// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"
	"testing"
)

// The data path's name is no word of a command, and another name is refused.
func TestWithoutDatapath(t *testing.T) {
	for _, c := range []struct {
		words string
		limit int
		want  string
	}{
		{"", 0, ""}, {datapathName, 0, ""}, {"-m " + datapathName + " zone=1", 1, "zone=1"}, {"zone=1 mark=2", 2, "zone=1 mark=2"},
		{"other", 0, "ovs-vswitchd: datapath not found (Invalid argument)"}, {"other 10", 1, "ovs-vswitchd: datapath not found (Invalid argument)"},
	} {
		rest, err := withoutDatapath(strings.Fields(c.words), c.limit)
		got := strings.Join(rest, " ")
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: %q, expected %q", c.words, got, c.want)
		}
	}
}

// A filter that is not valid is refused in Open vSwitch's words.
func TestWrongFilter(t *testing.T) {
	for args, want := range map[string]string{
		"zone=70000":                       "failed to parse zone",
		"zone=1 mark=x":                    "failed to parse mark",
		"labels=1/x":                       "failed to parse labels",
		"zone=1 ct_nw_src=1.1.1.1,dst=1":   "invalid conntrack tuple field: dst",
		"ct_nw_src=1.1.1.1,ct_nw_dst=here": "failed to parse field ct_nw_dst",
		"ct_nw_proto":                      "invalid arguments",
		"zone=1 ct_nw_proto=6 ct_nw_proto=6 ct_nw_proto=6": "invalid arguments",
	} {
		if got := wrongFilter(strings.Fields(args)); got != want {
			t.Errorf("%s: %q, expected %q", args, got, want)
		}
	}
}
