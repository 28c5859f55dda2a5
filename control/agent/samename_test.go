// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"weft/central/wire"
)

// A port is deleted and another one of the same name is declared. The hub sends the two changes in
// any order. In both orders, the switch's port ends with the new declaration and its address.
func TestNewPortWithTheNameOfADeletedOne(t *testing.T) {
	declared := func(id string, mac uint64) *wire.LocalPort {
		return &wire.LocalPort{Port: &wire.Port{Id: id, Name: "web", Net: "n", Mac: wire.MACBytes(mac)}, Bound: true}
	}
	local := LocalPort{Name: "web", Up: true}
	for _, removedFirst := range []bool{true, false} {
		s := newState()
		s.host = "h1"
		s.reset(netResetOf(&wire.NetReset{View: &wire.NetView{Net: &wire.Net{Id: "n", Vni: 7}}}), newBatch())
		s.setPort(declared("old", 1), local, newBatch())
		s.setPlace(s.nets["n"], &portPlace{"old", place{mac: 1, host: "h1", generation: 3, digest: 1}}, newBatch())

		b := newBatch()
		if removedFirst {
			s.removePort("old", b)
		}
		s.setPort(declared("new", 2), local, b)
		s.setPlace(s.nets["n"], &portPlace{"new", place{mac: 2, host: "h1", generation: 4, digest: 2}}, b)
		if !removedFirst {
			s.removePort("old", b)
		}
		c := b.changes()
		last := c.Ports[len(c.Ports)-1]
		if last.Name != "web" || last.Gone || last.MAC != 2 {
			t.Errorf("removed first %v: the last declaration of the port is %+v", removedFirst, last)
		}
		if len(c.Addresses) != 1 || c.Addresses[0].MAC != 2 || c.Addresses[0].Port != "web" {
			t.Errorf("removed first %v: addresses %+v, expected MAC address 2 at web", removedFirst, c.Addresses)
		}
		if len(c.Removed) != 1 || c.Removed[0].MAC != 1 {
			t.Errorf("removed first %v: removed addresses %+v, expected MAC address 1", removedFirst, c.Removed)
		}
	}
}
