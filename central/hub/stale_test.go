// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/store"
	"weft/central/wire"
	"weft/internal/waitfor"
)

// learned returns a rig with a network that is asked. Host 1 has port 1 and knows the
// place of port 2, which is on host 2.
func learned(t *testing.T) (r *rig, host1, host2 *testHost) {
	r = newRig(t)
	objects := []store.Object{netObject("n1", 100, false)}
	for n := range 1100 {
		objects = append(objects, portObject(n, "n1", ""))
	}
	r.memory.Put(objects...)
	host1, host2 = r.host(1, locals("port1")...), r.host(2, locals("port2")...)
	r.settled()
	waitfor.True(t, "host 1 learns the other port", func() bool {
		host1.agent.Ask("port1", 100, 0x020000000002, netip.Addr{})
		return host1.recorder.Has(100, 0x020000000002)
	})
	return r, host1, host2
}

// leaves ends a host and the binding of its port, whether the host has a session or not.
func (r *rig) leaves(h *testHost, port string) {
	h.stop()
	delete(r.hosts, h.id)
	waitfor.True(r.t, "the session ends", func() bool { return r.hub.Stats().Sessions <= len(r.hosts) })
	r.memory.Put(store.Object{Kind: store.KindBind, ID: port})
}

// While a host has no session, an address of its network goes away, and another port
// gets a second address. In its next session the host forgets the first address and
// learns the second one's new place. It does not wait for a frame to these addresses.
func TestAskedAddressGoesWithoutSession(t *testing.T) {
	r, one, two := learned(t)
	r.stop()
	r.leaves(two, "p2")
	r.start()
	waitfor.True(t, "host 1 forgets the address", func() bool { return !one.recorder.Has(100, 0x020000000002) })
	if s := one.agent.Stats(); s.Stale != 1 {
		t.Errorf("%d stale places are counted", s.Stale)
	}
	r.settled()
}

// A host that restarts with its state does so, too. Here the address belongs to another
// port afterwards.
func TestAskedAddressChangesPortsWithoutSession(t *testing.T) {
	r, one, two := learned(t)
	one.stop()
	r.leaves(two, "p2")
	other := proto.CloneOf(portObject(2, "n1", "").Message.(*wire.Port))
	other.Id, other.Name = "other", "other"
	r.memory.Put(store.Object{Kind: store.KindPort, ID: "p2"}, store.Object{Kind: store.KindPort, ID: "other", Message: other})
	three := r.host(3, locals("other")...)
	waitfor.True(t, "the other port is bound", func() bool { return three.recorder.Here(100, 0x020000000002) })
	r.startAgent(one)
	r.settled()
	waitfor.True(t, "host 1 has one place of the address", func() bool { return one.agent.Stats().Places == 2 })
}

// If a network is sent again in the middle of a session, the hub forgets what the hosts
// have asked for. Their agents ask again.
func TestAskedNetworkIsSentAgain(t *testing.T) {
	r, one, two := learned(t)
	r.net("n1", 100, true)
	r.settled()
	waitfor.True(t, "host 1 asks again", func() bool { return one.agent.Stats().Rechecks >= 2 })
	r.leaves(two, "p2")
	waitfor.True(t, "host 1 forgets the address", func() bool { return !one.recorder.Has(100, 0x020000000002) })
	r.settled()
}
