// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// Each change of a network's services reaches the ports of the network. The services are restored
// from the saved state.
func TestServicesReachPorts(t *testing.T) {
	settings := &wire.Addressing{Subnets: []*wire.Prefix{{Address: []byte{10, 0, 0, 0}, Bits: 24}}, Service: [][]byte{{10, 0, 0, 2}}, Dhcp: true}
	view := func(a *wire.Addressing) *wire.NetView {
		return &wire.NetView{Net: &wire.Net{Id: "n", Name: "blue", Vni: 7, Mtu: 1400, Addressing: a}}
	}
	port := &wire.LocalPort{Port: &wire.Port{Id: "p", Name: "web1", Net: "n", Mac: []byte{2, 0, 0, 0, 0, 1}, Addresses: [][]byte{{10, 0, 0, 1}}}}
	s, b := newState(), newBatch()
	s.setPort(port, LocalPort{Name: "tap1"}, b)
	s.reset(netReset{view: view(settings)}, b)
	check := func(name string, c *Changes) {
		t.Helper()
		if len(c.Ports) != 1 || len(c.Nets) != 1 || c.Ports[0].Services == nil || c.Nets[0].Services != c.Ports[0].Services || c.Ports[0].Guest != "web1" {
			t.Fatalf("%s: %+v", name, c)
		}
		if got := c.Ports[0].Services; !got.DHCP || got.LeaseS != wire.DefaultLease || got.MTU != 1400 || !slices.Equal(got.Addresses, []netip.Addr{netip.MustParseAddr("10.0.0.2")}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	check("declared", b.changes())
	before := s.nets["n"].digest
	data, err := proto.Marshal(s.message())
	if err != nil {
		t.Fatal(err)
	}
	kept := new(wire.HostState)
	if err := proto.Unmarshal(data, kept); err != nil {
		t.Fatal(err)
	}
	restored, b := stateOf(kept, func(*wire.Port) LocalPort { return LocalPort{Name: "tap1"} }), newBatch()
	restored.fill(b)
	check("restored", b.changes())

	b = newBatch()
	s.update(&netUpdate{net: "n", view: view(nil)}, b)
	if c := b.changes(); len(c.Ports) != 1 || c.Ports[0].Services != nil || c.Nets[0].Services != nil || s.nets["n"].digest == before {
		t.Errorf("removed: %+v", c)
	}
	b = newBatch()
	s.update(&netUpdate{net: "n", view: view(&wire.Addressing{Dhcp: true})}, b) // wrong, as of a later version
	if c := b.changes(); c.Ports[0].Services != nil {
		t.Errorf("wrong settings: %+v", c)
	}
}
