// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"weft/api"
	"weft/control/limits"
	"weft/control/workers/workertest"
)

// The API and the metrics show the same limit rows.
func TestLimitRows(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("priority=1,in_port=p1,udp,tp_dst=9,actions=drop", "in_port=p2,actions=drop")
	f.worker().Frame(workertest.UDPKey(1, 0, 2, 9), 100)
	f.settle()
	get := func(path string) (rows []api.Limit) {
		t.Helper()
		resp, err := overSocket(f.config.Socket).Get("http://weft" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	all := get("/v1/limits")
	for _, name := range strings.Fields("captures connections expectations flows fragmented_datagrams geneve_options groups held_frames macs masks megaflow_actions megaflows meter_bands recirculation_ids") {
		if !slices.ContainsFunc(all, func(l api.Limit) bool { return l.Name == name && l.HolderKind == "all" && l.Limit > 0 && l.Unit != "" }) {
			t.Errorf("no row %s for all holders", name)
		}
	}
	own := get("/v1/limits?port=p1")
	if len(own) == 0 {
		t.Fatal("p1 uses no resource")
	}
	for _, l := range own {
		if l.HolderKind != "port" || l.Holder != "p1" || l.Used == 0 || !slices.Contains(all, l) {
			t.Errorf("%+v", l)
		}
	}
	resp, err := overSocket(f.config.Socket).Get("http://weft/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	for _, l := range own {
		line := fmt.Sprintf(`weft_limit_used{holder="p1",holder_kind="port",limit="%s",unit="%s"} %d`, l.Name, l.Unit, l.Used)
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("metrics lack %s", line)
		}
	}
	if _, err := f.d.rest.LimitsOf("p3"); err == nil || !strings.Contains(err.Error(), "p3: no such port") {
		t.Errorf("limits of p3: %v", err)
	}
}

// Each pair of name and holder has one limit row, because a second row would break the metrics.
func TestLimitRowsAreUnique(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	type id struct {
		name   string
		holder limits.Holder
	}
	seen := map[id]bool{}
	for _, r := range f.d.limits.Rows() {
		if seen[id{r.Name, r.Holder}] {
			t.Errorf("two rows %+v", r)
		}
		seen[id{r.Name, r.Holder}] = true
	}
}
