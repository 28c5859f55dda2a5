// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"testing"

	"weft/central/store"
	"weft/central/wire"
)

// The old host of a moved port keeps the port for MoveGrace. A host that had the port
// while it was unbound, and to which it was never bound, loses the port at once: it
// would otherwise send frames with the address of the port that is bound to the other host.
func TestMoveGraceIsForTheOldHost(t *testing.T) {
	bind := func(host string, revision int64) []store.Object {
		return []store.Object{{Kind: store.KindBind, ID: "p1", Revision: revision,
			Message: &wire.Bind{Port: "p1", Host: host, Endpoint: []byte{192, 0, 2, host[1] - '0'}}}}
	}
	for _, test := range []struct {
		name    string
		hosts   []string // to which the port is bound, in order
		expects bool     // h1 keeps the port
	}{
		{"two hosts had an unbound port", []string{"h2"}, false},
		{"the port has moved", []string{"h1", "h2"}, true},
		{"the port has moved twice", []string{"h1", "h2", "h3"}, true},
	} {
		h, s := fleetOfOne(t, noStore{})
		h.mu.Lock()
		for i, host := range test.hosts {
			revision := int64(i + 2)
			h.take(revision, bind(host, revision))
			h.round()
		}
		_, keeps := s.own[h.fleet.ports["p1"]]
		if keeps != test.expects {
			t.Errorf("%s: h1 keeps the port: %t, expected %t", test.name, keeps, test.expects)
		}
		h.mu.Unlock()
	}
}
