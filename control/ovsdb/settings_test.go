// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/api"
)

// fakeSettings is a Tracker and FlowTables in memory, which records the changes.
type fakeSettings struct {
	dead   bool
	state  api.Conntrack
	tables []api.Table
	learns map[string]Learning
	noted  []string
}

func (f *fakeSettings) Settings() (api.Conntrack, error) {
	if f.dead {
		return api.Conntrack{}, errors.New("no engine")
	}
	return f.state, nil
}

func (f *fakeSettings) zone(n uint16) *api.Zone {
	i := slices.IndexFunc(f.state.Zones, func(z api.Zone) bool { return z.Zone == n })
	if i < 0 {
		i = len(f.state.Zones)
		f.state.Zones = append(f.state.Zones, api.Zone{Zone: n})
	}
	return &f.state.Zones[i]
}

func (f *fakeSettings) Change(c *api.ChangeConntrack) error {
	switch {
	case c.TimeoutZone != nil && c.ClearTimeouts:
		f.zone(*c.TimeoutZone).Timeouts = nil
		f.noted = append(f.noted, fmt.Sprintf("zone %d: no timeouts", *c.TimeoutZone))
	case c.TimeoutZone != nil:
		if c.Timeouts["tcp_close"] == 0 {
			return errors.New("tcp_close=0")
		}
		f.zone(*c.TimeoutZone).Timeouts = c.Timeouts
		f.noted = append(f.noted, fmt.Sprintf("zone %d: %v", *c.TimeoutZone, c.Timeouts))
	case c.DefaultLimit != nil:
		f.state.DefaultLimit = *c.DefaultLimit
		f.noted = append(f.noted, fmt.Sprintf("default limit %d", *c.DefaultLimit))
	case c.ClearDefaultLimit:
		f.state.DefaultLimit = 0
		f.noted = append(f.noted, "no default limit")
	}
	for _, l := range c.Limits {
		f.zone(l.Zone).Limit = &l.Limit
		f.noted = append(f.noted, fmt.Sprintf("zone %d: limit %d", l.Zone, l.Limit))
	}
	for _, zone := range c.ClearLimits {
		f.zone(zone).Limit = nil
		f.noted = append(f.noted, fmt.Sprintf("zone %d: no limit", zone))
	}
	return nil
}

func (f *fakeSettings) Tables(string) ([]api.Table, error) { return f.tables, nil }

func (f *fakeSettings) SetVLANLimit(limit int) {
	f.noted = append(f.noted, fmt.Sprintf("flows see tags: %d", limit))
}

func (f *fakeSettings) Learning(bridge string) (Learning, error) {
	return f.learns[bridge], nil
}

func (f *fakeSettings) SetLearning(bridge string, l Learning) error {
	f.noted = append(f.noted, fmt.Sprintf("%s learns %d for %v, bpdus %v", bridge, l.Bounds.Limit, l.Bounds.Age, l.ForwardsBPDUs))
	f.learns[bridge] = l
	return nil
}

func (f *fakeSettings) ModifyTable(bridge string, mod api.ModTable) error {
	f.noted = append(f.noted, fmt.Sprintf("%s table %d: %s", bridge, mod.Table, strings.Join(mod.Settings, " ")))
	f.tables = slices.DeleteFunc(f.tables, func(t api.Table) bool { return t.Table == mod.Table })
	t := api.Table{Table: mod.Table, Evict: mod.Settings[1] == "evict"}
	fmt.Sscanf(mod.Settings[0], "limit:%d", &t.Limit)
	f.tables = append(f.tables, t)
	return nil
}

// After one pass, zones and flow tables agree with the rows. A second pass changes nothing.
func TestSettings(t *testing.T) {
	f := &fakeSettings{state: api.Conntrack{Zones: []api.Zone{{Zone: 9, Limit: new(uint32)}}, Timeouts: map[string]uint32{"tcp_close": 10, "udp_first": 30}},
		tables: []api.Table{{Table: 4, Limit: 9, Evict: true}, {Table: 5, Flows: 3}}, learns: map[string]Learning{}}
	c := New(Setup{Tracker: f, Tables: f, Log: slog.New(slog.DiscardHandler)})
	zone := func(id string) value { return value{pairs: map[any]any{int64(5): uuid(id), int64(6): uuid("plain")}} }
	rows := tables{
		"Open_vSwitch": {"o": row{"bridges": one(uuid("b")), "datapaths": {pairs: map[any]any{"system": uuid("d")}},
			"other_config": mapOf(map[string]string{"vlan-limit": "1"})}},
		"Bridge":     {"b": row{"name": one("br0"), "flow_tables": {pairs: map[any]any{int64(3): uuid("t")}}}},
		"Flow_Table": {"t": row{"flow_limit": one(int64(100)), "overflow_policy": one("evict")}},
		"Datapath":   {"d": row{"ct_zones": zone("z"), "ct_zone_default_limit": one(int64(7))}},
		"CT_Zone":    {"z": row{"limit": one(int64(40)), "timeout_policy": one(uuid("p"))}, "plain": row{}},

		"CT_Timeout_Policy": {"p": row{"timeouts": {pairs: map[any]any{"udp_first": int64(3), "tcp_unack": int64(1)}}}},
	}
	for _, step := range []struct {
		change func()
		want   []string
	}{
		{func() { f.dead = true }, []string{"flows see tags: 1", "br0 table 3: limit:100 evict", "br0 table 4: limit:0 noevict"}},
		{func() { f.dead = false }, []string{"zone 5: map[tcp_close:10 udp_first:3]", "zone 5: limit 40", "default limit 7"}},
		{func() { rows["CT_Timeout_Policy"]["p"]["timeouts"].pairs["tcp_close"] = int64(0) }, nil}, // the switch refuses this value
		{func() { rows["CT_Zone"]["z"] = row{} }, []string{"zone 5: no timeouts", "zone 5: no limit"}},
		{func() { rows["Datapath"]["d"] = row{"ct_zones": zone("z")}; delete(rows["Flow_Table"], "t") },
			[]string{"br0 table 3: limit:0 noevict", "no default limit"}},
		{func() {
			rows["Bridge"]["b"]["other_config"] = mapOf(map[string]string{"mac-table-size": "50", "mac-aging-time": "60", "forward-bpdu": "TRUE"})
		}, []string{"br0 learns 50 for 1m0s, bpdus true"}},
		{func() {
			rows["Bridge"]["b"]["other_config"] = mapOf(map[string]string{"mac-table-size": "100000", "mac-aging-time": "4000", "forward-bpdu": "1"})
		}, []string{"br0 learns 65536 for 1h0m0s, bpdus false"}},
		{func() { delete(rows["Bridge"]["b"], "other_config") }, []string{"br0 learns 0 for 0s, bpdus false"}},
	} {
		step.change()
		for range 2 {
			w := wantedSettings(rows)
			if done := c.agreeSettings(&w); done == f.dead {
				t.Errorf("done is %v", done)
			}
		}
		if !slices.Equal(f.noted, step.want) {
			t.Errorf("changes %q, want %q", f.noted, step.want)
		}
		f.noted = nil
	}
}

// A value of other_config out of range has one line, and the nearest value in range counts.
func TestLearningOutOfRange(t *testing.T) {
	for _, c := range []struct{ key, value, reason string }{
		{"mac-table-size", "9", "9: expected 10 to 65536 addresses; 10 is used"},
		{"mac-table-size", "1000000", "1000000: expected 10 to 65536 addresses; 65536 is used"},
		{"mac-table-size", "-1", "-1: expected 10 to 65536 addresses; the default is used"},
		{"mac-aging-time", "14", "14: expected 15 to 3600 seconds; 15 is used"},
		{"mac-aging-time", "3601", "3601: expected 15 to 3600 seconds; 3600 is used"},
		{"mac-aging-time", "5m", "5m: expected 15 to 3600 seconds; the default is used"},
		{"mac-aging-time", "99999999999999999999", "99999999999999999999: expected 15 to 3600 seconds; the default is used"},
		{"forward-bpdu", "yes", "yes: expected true or false; false is used"},
		{"forward-bpdu", "false", ""},
		{"mac-aging-time", "3600", ""},
	} {
		var reasons []string
		noteIgnored(tables{"Bridge": {"b": row{"name": one("br0"), "other_config": mapOf(map[string]string{c.key: c.value})}}},
			func(subject, reason string) { reasons = append(reasons, subject+": "+reason) })
		want := []string{"bridge br0 " + c.key + ": " + c.reason}
		if c.reason == "" {
			want = nil
		}
		if !slices.Equal(reasons, want) {
			t.Errorf("%s=%s: %q, want %q", c.key, c.value, reasons, want)
		}
	}
}

// The database's row of table SSL counts while Open_vSwitch names it.
func TestSSLRow(t *testing.T) {
	rows := tables{"Open_vSwitch": {"o": row{}}, "SSL": {"s": row{"private_key": one("k"), "certificate": one("c"), "ca_cert": one("a"), "bootstrap_ca_cert": one(true)}}}
	if got := rows.ssl(); got != nil {
		t.Errorf("a row that nothing names: %+v", got)
	}
	rows["Open_vSwitch"]["o"]["ssl"] = one(uuid("s"))
	if got := rows.ssl(); got == nil || *got != (SSL{"k", "c", "a", true}) {
		t.Errorf("SSL row: %+v", got)
	}
}

func TestControllerStatus(t *testing.T) {
	now := time.Unix(1000, 0)
	states := map[string]Controller{
		"tcp:1.1.1.1:6653": {Connected: true, Role: "master", Since: now.Add(-5 * time.Second)},
		"tcp:1.1.1.2:1":    {Since: now.Add(-7 * time.Second), Problem: "refused"},
	}
	for _, c := range []struct {
		target, problem string
		want            map[string]string
	}{
		{"tcp:1.1.1.1", "", map[string]string{"state": "ACTIVE", "sec_since_connect": "5"}},
		{"tcp:1.1.1.2:1", "", map[string]string{"state": "BACKOFF", "sec_since_disconnect": "7", "last_error": "refused"}},
		{"tcp:1.1.1.3:1", "no certificate", map[string]string{"state": "BACKOFF", "last_error": "no certificate"}},
		{"punix:/x", "", map[string]string{"state": "VOID", "last_error": "expected tcp: or ssl:; tools use the socket BRIDGE.mgmt"}},
	} {
		state, status := controllerStatus(c.target, states, c.problem, now)
		if !maps.Equal(status, c.want) || (state.Role == "master") != (c.target == "tcp:1.1.1.1") {
			t.Errorf("%s: %+v %v, want %v", c.target, state, status, c.want)
		}
	}
}
