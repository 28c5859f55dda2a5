// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"

	"weft/central/wire"
)

// The store refuses settings that are wrong, and keeps a network's service address from its ports.
func TestServiceAddressIsGuarded(t *testing.T) {
	s := testMember(t).Store()
	served := func(service byte) *wire.Change {
		return &wire.Change{Change: &wire.Change_SetNet{SetNet: &wire.Net{Id: "n", Name: "blue", Vni: 7, Addressing: &wire.Addressing{
			Subnets: []*wire.Prefix{{Address: []byte{10, 0, 0, 0}, Bits: 24}}, Service: [][]byte{{10, 0, 0, service}}, Dhcp: true}}}}
	}
	apply(t, s, served(2))
	wantGuards(t, s)
	refused(t, s, "port p: address 10.0.0.2 is the service address of network blue; choose another", setPort(port("p", "n", 2)))
	apply(t, s, setPort(port("q", "n", 3)))
	refused(t, s, "network blue: service address 10.0.0.3 belongs to port q; choose another", served(3))
	apply(t, s, served(4), setPort(port("p", "n", 2)))
	wantGuards(t, s)
	apply(t, s, deletePort("p"), deletePort("q"), deleteNet("n"))
	wantGuards(t, s)
	refused(t, s, "network n: dhcp=on without an IPv4 address in service=", &wire.Change{Change: &wire.Change_SetNet{SetNet: &wire.Net{
		Id: "n", Name: "n", Vni: 7, Addressing: &wire.Addressing{Dhcp: true}}}})
	refused(t, s, "network n: subnets: 3 bytes /24: expected a prefix", &wire.Change{Change: &wire.Change_SetNet{SetNet: &wire.Net{
		Id: "n", Name: "n", Vni: 7, Addressing: &wire.Addressing{Subnets: []*wire.Prefix{{Address: []byte{10, 0, 0}, Bits: 24}}}}}})
}
