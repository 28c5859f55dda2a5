// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strings"
	"testing"

	"weft/control/change"
	"weft/control/store"
	"weft/openflow/xlate"
)

// A port that is deleted and added again gets its old number. Ports with other names
// get other numbers.
func TestNumbersStayWithNames(t *testing.T) {
	ports, _ := newTestPorts(t)
	ports.vxlanPorts(t, 3)
	if err := ports.Delete("p2"); err != nil {
		t.Fatal(err)
	}
	add := func(name, vni string) uint32 {
		t.Helper()
		p, err := ports.Add(name, []string{"type=vxlan", "vni=" + vni, "remote=192.0.2.1"})
		if err != nil {
			t.Fatal(err)
		}
		return p.Number
	}
	if n := add("other", "20"); n != 4 {
		t.Errorf("a new name has number %d, want 4: 2 is still meant by flows that named p2", n)
	}
	if n := add("p2", "21"); n != 2 {
		t.Errorf("p2 has number %d after it was deleted and added again, want 2", n)
	}
}

// In each bridge, the numbers of ports in flows begin at 1. In the data path all numbers differ.
func TestNumbersOfBridges(t *testing.T) {
	ports, _ := newTestPorts(t)
	ports.addBridges("br1", "br2")
	add := func(name string, words ...string) (inFlows, number uint32) {
		t.Helper()
		p, err := ports.Add(name, append([]string{"type=patch", "peer=other"}, words...))
		if err != nil {
			t.Fatal(err)
		}
		return p.InFlows(), p.Number
	}
	refused := func(want, name string, words ...string) {
		t.Helper()
		if _, err := ports.Add(name, append([]string{"type=patch", "peer=other"}, words...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %v: %v, want %q", name, words, err, want)
		}
	}
	seen := map[uint32]string{}
	for _, c := range []struct {
		name  string
		words []string
		want  uint32
	}{
		{"a1", nil, 1}, {"b1", []string{"bridge=br1"}, 1}, {"c1", []string{"bridge=br2"}, 1}, {"b2", []string{"bridge=br1"}, 2}, {"a2", nil, 2},
		{"b+", []string{"bridge=br1", "ofport_request=9"}, 9}, {"a9", []string{"ofport_request=9"}, 9}, {"a3", []string{"bridge=br0"}, 3},
		{"a5000", []string{"ofport_request=5000"}, 5000}, {"b5000", []string{"bridge=br1", "ofport_request=5000"}, 5000}, {"b3", []string{"bridge=br1"}, 3},
	} {
		got, number := add(c.name, c.words...)
		if got != c.want {
			t.Errorf("%s has number %d in flows, want %d", c.name, got, c.want)
		}
		if seen[number] != "" {
			t.Errorf("%s and %s have number %d in the data path", c.name, seen[number], number)
		}
		seen[number] = c.name
	}
	refused("port b+ has this number", "x", "bridge=br1", "ofport_request=9")
	refused("port a1 has this number", "x", "ofport_request=1")
	refused("has this number in the data path", "x", "ofport_request=1022")
	refused("a number from 1 to 65279", "x", "ofport_request=65280")

	// the view of each bridge resolves numbers in its own flows
	for bridge, want := range []string{"a1", "b1", "c1"} {
		if got, _ := ports.pipeline.View().Of(uint8(bridge)).PortName(1); got != want {
			t.Errorf("port 1 of bridge %d is %s, want %s", bridge, got, want)
		}
	}
	// a name keeps its number when the port is deleted and added again, or changed
	if err := ports.Delete("b2"); err != nil {
		t.Fatal(err)
	}
	if got, _ := add("b4", "bridge=br1"); got != 4 {
		t.Errorf("a new name in br1 has number %d, want 4", got)
	}
	if got, _ := add("b2", "bridge=br1"); got != 2 {
		t.Errorf("b2 has number %d again, want 2", got)
	}
	if p, err := ports.Modify("b+", []string{"tag=7"}); err != nil || p.InFlows() != 9 {
		t.Errorf("after mod-port: %+v %v", p, err)
	}
	if _, err := ports.Modify("b+", []string{"ofport_request=8"}); err == nil || !strings.Contains(err.Error(), "keeps its number") {
		t.Errorf("a changed ofport_request: %v", err)
	}
	// PreferIn sets the last number of a name, unless a port has the number
	tx := ports.configuration.Begin()
	for name, number := range map[string]uint32{"late": 6000, "low": 7, "clash": 9} {
		ports.PreferIn(tx, "br1", name, number)
	}
	tx.Commit()
	for _, c := range []struct {
		name string
		want uint32
	}{{"clash", 5}, {"low", 7}, {"late", 6000}} {
		if got, _ := add(c.name, "bridge=br1"); got != c.want {
			t.Errorf("%s has number %d, want %d", c.name, got, c.want)
		}
	}
	// in a bridge that is deleted and added again, numbers begin at 1
	tx = ports.configuration.Begin()
	ports.DeleteAll(tx, 1)
	tx.Commit()
	if got, _ := add("z1", "bridge=br1"); got != 1 {
		t.Errorf("the first port of a new bridge has number %d", got)
	}
}

// A port that an earlier version has saved without a number in flows keeps its number.
func TestNumbersOfEarlierVersions(t *testing.T) {
	ports, configuration := newTestPorts(t)
	ports.addBridges("br1", "br2")
	saved := []store.Port{{Number: 7, Name: "old", Options: []string{"type=patch", "peer=other", "bridge=br1"}},
		{Number: 1000, Name: "saved", InFlows: 1, Options: []string{"type=patch", "peer=other", "bridge=br1"}}}
	configuration.Do(func(tx *change.Tx) { ports.Load(tx, saved, map[uint32]string{}, nil) })
	for name, want := range map[string]xlate.PortInfo{"old": {No: 7}, "saved": {No: 1, Datapath: 1000}} {
		if info := ports.portByName(name).info; info.No != want.No || info.At() != want.At() {
			t.Errorf("%s: %d in flows, %d in the data path", name, info.No, info.At())
		}
	}
}
