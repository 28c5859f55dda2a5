// SPDX-License-Identifier: Apache-2.0

package control

import (
	"maps"
	"strings"
	"testing"
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

// Ensure accepts a port that exists already with the same options.
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
