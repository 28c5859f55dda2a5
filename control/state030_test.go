// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"weft/api"
)

// declared returns the switch's configuration as text: bridges, ports, flows, groups, meters, table
// settings and the TLV map.
func (f *fakes) declared() string {
	f.t.Helper()
	first, err := api.NewClient(f.config.Socket)
	if err != nil {
		f.t.Fatal(err)
	}
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	check := func(err error) {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	bridges, err := first.Bridges()
	check(err)
	ports, err := first.Ports("")
	check(err)
	for _, p := range ports {
		var options []string
		for key, value := range p.Options {
			options = append(options, key+"="+value)
		}
		slices.Sort(options)
		add("port %d %s %s", p.Number, p.Name, strings.Join(options, " "))
	}
	for _, b := range append([]api.Bridge{{}}, bridges...) {
		if b.Name != "" {
			add("bridge %s fail-mode %s controllers %q", b.Name, b.FailMode, b.Controllers)
		}
		on := first.On(b.Name)
		flows, err := on.Flows("")
		check(err)
		for _, flow := range flows {
			add("flow table=%d priority=%d cookie=%#x %s actions=%s", flow.Table, flow.Priority, flow.Cookie, flow.Match, flow.Actions)
		}
		groups, err := on.Groups("")
		check(err)
		for _, g := range groups {
			add("group %s", g.Line)
		}
		meters, err := on.Meters("")
		check(err)
		for _, m := range meters {
			add("meter %s", m.Line)
		}
		tables, err := on.Tables()
		check(err)
		for _, table := range tables {
			add("table %d limit %d evict %v", table.Table, table.Limit, table.Evict)
		}
		tlvs, err := on.TLVMap()
		check(err)
		for _, m := range tlvs.Mappings {
			add("tlv %s", m.Line)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// A state file of version 0.3.0 loads completely: bridges, patch ports, controllers, groups, meters,
// table settings, TLVs and connection tracking in flows. A second start loads the state that the first
// has saved. testdata/record.sh has recorded the file. What 0.3.0 itself listed agrees with the text.
func TestStateOf030(t *testing.T) {
	want, err := os.ReadFile("testdata/state-0.3.0.txt")
	if err != nil {
		t.Fatal(err)
	}
	f := newFakes(t)
	f.end()
	f.unpack("state-0.3.0.db.gz")
	for start := range 2 {
		f.begin()
		if got := f.declared(); got != string(want) {
			t.Errorf("start %d: declared is\n%swant\n%s", start, got, want)
		}
		f.end()
	}
}
