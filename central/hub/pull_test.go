// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"net/netip"
	"testing"

	"weft/internal/waitfor"
)

// Even if a hub is late with its changes, it serves the host of a new port at once, and
// also another host that asks for the port's address. If a host asks for an address
// that nobody has, the hub answers that nobody has it. As soon as a port has the
// address, the hub sends it without another question.
func TestLateHubIsPulled(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(portObject(1, "n1", ""), portObject(2, "n1", ""))
	one, two := r.host(1, locals("port1", "port3", "port9")...), r.host(2, locals("port2")...)
	r.settled()
	r.hub.Stall()
	const mac = 0x020000000003
	r.memory.Put(portObject(3, "n1", ""))
	waitfor.True(t, "the host has its own port", func() bool { return one.recorder.Here(100, mac) })
	waitfor.True(t, "the other host waits", func() bool { return r.hub.Stats().Waiting > 0 })
	if two.recorder.Has(100, mac) {
		t.Fatal("the hub does not stall")
	}
	if !two.agent.Ask("port2", 100, mac, netip.Addr{}) {
		t.Fatal("the agent does not ask")
	}
	waitfor.True(t, "the other host knows the address", func() bool { return two.recorder.Has(100, mac) })
	if !two.agent.Ask("port2", 100, 0x020000000009, netip.Addr{}) {
		t.Fatal("the agent does not ask for an address that nobody has")
	}
	waitfor.True(t, "nobody has the address", func() bool { return two.recorder.Unknown() == 1 })
	if s := r.hub.Stats(); s.Pulls != 2 {
		t.Errorf("%d pulls", s.Pulls)
	}
	r.memory.Put(portObject(9, "n1", ""))
	waitfor.True(t, "the other host gets the address that it misses", func() bool { return two.recorder.Has(100, 0x020000000009) })
	// Sync waits for no turn.
	if _, err := r.hub.Sync(t.Context(), r.memory.Put(portObject(4, "n1", ""))); err != nil {
		t.Error(err)
	}
	r.settled()
}
