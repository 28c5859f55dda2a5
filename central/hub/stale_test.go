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

// learned returns a rig with a network so large that hosts must ask for addresses. Host 1 has port 1 and
// has asked for the address of port 2, which is on host 2.
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

// leaves stops a host's agent, and deletes the binding of the host's port.
func (r *rig) leaves(h *testHost, port string) {
	h.stop()
	delete(r.hosts, h.id)
	waitfor.True(r.t, "the session ends", func() bool { return r.hub.Stats().Sessions <= len(r.hosts) })
	r.memory.Put(store.Object{Kind: store.KindBind, ID: port})
}

// While host 1 has no session, a port whose address it knows is unbound. In its next session the host
// forgets the address at once. It does not wait for a frame to this address.
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

// While the agent of host 1 is stopped, an address that it knows goes to another port on another host.
// After its start with the saved state, the agent knows only the new place.
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
