// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"net/netip"
	"slices"
	"testing"
)

// A change of options does not make a port forget that a remote is lost, or that the port is
// down. Otherwise frames would go to the lost remote until the next check of liveness.
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
