// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"weft/api"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/workers/workertest"
)

// A vxlan port whose options are changed keeps its number and its statistics. It uses
// the new options at once, and still has them after a restart.
func TestModPort(t *testing.T) {
	f := newFakes(t)
	if _, err := f.d.ports.Add("p1", []string{"type=vxlan", "vni=1", "remote=192.0.2.1", "ttl=3"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.d.ports.Add("p2", []string{"type=vxlan", "vni=2", "remote=192.0.2.1"}); err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{
		"vni=2 ttl=":  "p2 has the same vni, remote, local and dst_port",
		"type=tap":    "a port keeps its type",
		"frob=1":      "type=vxlan has no option frob",
		"vni=x":       "vni=x: expected",
		"vni=":        "vni= is missing",
		"df=":         "the port has no option df",
		"ttl=4 ttl=5": "option ttl is given twice",
	} {
		if _, err := f.d.ports.Modify("p1", strings.Fields(words)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("mod-port p1 %s: %v, want %q", words, err, want)
		}
	}
	if _, err := f.d.ports.Modify("p3", []string{"ttl=4"}); err == nil {
		t.Error("mod-port of no port succeeds")
	}
	p, err := f.d.ports.Modify("p1", []string{"remote=192.0.2.7,192.0.2.8", "ttl="})
	if err != nil || p.Number != 1 || !maps.Equal(p.Options, map[string]string{"type": "vxlan", "vni": "1", "remote": "192.0.2.7,192.0.2.8"}) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := f.d.ports.Modify("p2", []string{"vni=1", "remote=192.0.2.7,192.0.2.8"}); err == nil || !strings.Contains(err.Error(), "port p1 has the same vni") {
		t.Errorf("p2 gets p1's new options: %v", err)
	}
	if _, err := f.d.ports.Modify("p2", []string{"vni=1"}); err != nil {
		t.Errorf("p2 gets p1's old options: %v", err)
	}
	f.end()
	f.begin()
	if list, err := f.d.ports.List("p1"); err != nil || list[0].Options["remote"] != "192.0.2.7,192.0.2.8" || list[0].Number != 1 {
		t.Errorf("after a restart: %+v, %v", list, err)
	}
}

// Ensure returns a port that already exists with the same options.
func TestMayExist(t *testing.T) {
	f := newFakes(t)
	options := []string{"type=vxlan", "vni=1", "remote=192.0.2.1"}
	for range 2 {
		if p, err := f.d.ports.Ensure("p1", options); err != nil || p.Number != 1 {
			t.Fatalf("%+v, %v", p, err)
		}
	}
	if _, err := f.d.ports.Ensure("p1", append(options, "ttl=7")); err == nil || !strings.Contains(err.Error(), "exists with ttl=, not ttl=7") {
		t.Errorf("other options: %v", err)
	}
	if f.d.ports.Exists("p2") || !f.d.ports.Exists("p1") {
		t.Error("Exists is wrong")
	}
}

// A port with admin=down neither takes frames nor sends any, gets no flooded frame, and counts as failed
// in groups. It is still down after a restart, and frames pass once it is up.
func TestPortDown(t *testing.T) {
	f := newFakes(t)
	f.flowTunnels("p1", "p2", "p3")
	f.add("actions=flood")
	actions := func(in uint32) string {
		t.Helper()
		w := f.worker()
		key := workertest.UDPKey(in, 1, 2, 9)
		w.Frame(key, 100)
		f.settle()
		for _, m := range f.d.bridges.Megaflows().DumpMegaflows(pipeline.ByName) {
			if strings.Contains(m.Match, fmt.Sprintf("in_port=p%d", in)) {
				return m.Actions
			}
		}
		return ""
	}
	change := func(words ...string) api.Port {
		t.Helper()
		p, err := f.d.ports.Modify("p1", words)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := change("admin=down"); p.State != "down" || p.Detail != "down by admin=down" {
		t.Errorf("%+v", p)
	}
	if got := actions(1); got != "drop(port-off)" {
		t.Errorf("from a port that is down: %q", got)
	}
	f.end()
	f.begin()
	if list, _ := f.d.ports.List("p1"); list[0].State != "down" {
		t.Errorf("after a restart: %+v", list)
	}
	if p := change("admin=up"); p.State != "up" || p.Options["admin"] != "" {
		t.Errorf("%+v", p)
	}
	if p := change("flood=off"); p.State != "up" || p.Options["flood"] != "off" {
		t.Errorf("%+v", p)
	}
	if err := f.d.ports.SetAdmin("p1", ports.Admin{Down: true}); err != nil {
		t.Fatal(err)
	}
	if list, _ := f.d.ports.List("p1"); list[0].State != "down" || list[0].Options["flood"] != "" {
		t.Errorf("after a port_mod: %+v", list)
	}
	if err := f.d.ports.SetAdmin("p77", ports.Admin{}); err == nil {
		t.Error("a port that does not exist is changed")
	}
}
