// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"weft/internal/waitfor"
)

// After a change of options, a port is still down, and its lost remotes are still lost. Otherwise frames
// would go to a lost remote until the next check of liveness.
func TestModifyKeepsLostRemotes(t *testing.T) {
	ports, _ := newTestPorts(t)
	if _, err := ports.Add("p", []string{"type=vxlan", "vni=1", "remote=192.0.2.1,192.0.2.2,192.0.2.3", "bfd=on"}); err != nil {
		t.Fatal(err)
	}
	first, second, third := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	for _, c := range []struct {
		word string
		want []netip.Addr
	}{
		{"bfd_mult=3", []netip.Addr{first, second}},
		{"remote=192.0.2.1,192.0.2.3", []netip.Addr{first}},
		{"remote=192.0.2.1", nil}, // frames still go to the only remote
	} {
		p := ports.portByName("p")
		p.info.Lost, p.info.Down = []netip.Addr{first, second}, true
		if _, err := ports.Modify("p", []string{c.word}); err != nil {
			t.Fatal(err)
		}
		p = ports.portByName("p")
		if !slices.Equal(p.info.Lost, c.want) || !p.info.Down {
			t.Errorf("%s: lost %v, down %v, want %v", c.word, p.info.Lost, p.info.Down, c.want)
		}
	}
	p := ports.portByName("p")
	p.info.Lost = []netip.Addr{third}
	if _, err := ports.Modify("p", []string{"bfd=", "bfd_mult="}); err != nil {
		t.Fatal(err)
	}
	if lost := ports.portByName("p").info.Lost; lost != nil {
		t.Errorf("without BFD: lost %v", lost)
	}
}

// The workers use the weight of a port as long as the port has the option.
func TestWeightChanges(t *testing.T) {
	ports, _, worker := newTestPortsOfWorker(t)
	socket := "path=" + filepath.Join(t.TempDir(), "g.sock")
	if _, err := ports.Add("g", []string{"type=vhost-user", socket, "weight=3"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ports.Delete("g") })
	number := ports.portByName("g").saved.Number
	want := func(moment, option string, weights map[uint32]uint32) {
		t.Helper()
		if p, err := ports.List("g"); err != nil || p[0].Options["weight"] != option {
			t.Errorf("%s: %v, %v, want weight %q", moment, p, err, option)
		}
		waitfor.True(t, moment+": the worker has the weight", func() (equal bool) {
			worker.On(func() { equal = maps.Equal(worker.Weights, weights) })
			return equal
		})
	}
	want("added", "3", map[uint32]uint32{number: 3})
	for _, c := range []struct {
		word, option string
		weights      map[uint32]uint32
	}{{"weight=100", "100", map[uint32]uint32{number: 100}}, {"weight=1", "", nil}, {"weight=2", "2", map[uint32]uint32{number: 2}}} {
		if _, err := ports.Modify("g", []string{c.word}); err != nil {
			t.Fatal(err)
		}
		want(c.word, c.option, c.weights)
	}
	if _, err := ports.Modify("g", []string{"weight=101"}); err == nil {
		t.Error("weight=101 is not refused")
	}
}
