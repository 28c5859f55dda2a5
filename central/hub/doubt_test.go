// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"path/filepath"
	"testing"

	"weft/central/store"
	"weft/central/wire"
	"weft/internal/waitfor"
)

// twoHubs returns the rigs of two hubs with one store. The first hub still has a session of host 1 with
// the attached ports, in which nobody answers any more. The host's agent follows the second hub, with the
// local ports.
func twoHubs(t *testing.T, attached []string, local ...string) (old, present *rig, host1 *testHost) {
	old = newRig(t)
	old.net("n1", 100, false)
	old.memory.Put(portObject(1, "n1", ""))
	present = &rig{t: t, memory: old.memory, socket: filepath.Join(t.TempDir(), "hub"), hosts: map[string]*testHost{}}
	present.start()
	t.Cleanup(func() { present.stop() })
	host1 = present.host(1)
	t.Cleanup(func() { host1.stop() })
	host1.stop() // the old session is first
	waitfor.True(t, "the old hub knows the host", func() bool { return old.hub.Stats().Hosts == 1 })
	if err := old.stream(host1.name).Send(&wire.FromHost{Message: &wire.FromHost_Hello{Hello: &wire.Hello{Ports: attached}}}); err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "the old session begins", func() bool { return old.hub.Stats().Sessions == 1 })
	host1.local = locals(local...)
	present.startAgent(host1)
	present.settled()
	return old, present, host1
}

// many makes both hubs go through many rounds, and calls check after each.
func many(t *testing.T, old, present *rig, check func()) {
	t.Helper()
	for range 50 {
		revision := old.memory.Put(portObject(2, "n1", ""))
		for _, r := range []*rig{old, present} {
			waitfor.True(t, "the hub has the revision", func() bool { return r.hub.Stats().Revision >= revision })
		}
		check()
	}
}

// A host has left a hub, and then deletes a port. The session that the hub still has does not bind the
// port again.
func TestOldSessionBindsNoDeletedPort(t *testing.T) {
	old, present, one := twoHubs(t, []string{"port1"}, "port1")
	waitfor.True(t, "the port is bound", func() bool { return old.memory.Declaration().Binds["p1"].Bind != nil })
	one.recorder.SetPorts()
	one.agent.PortsChanged()
	waitfor.True(t, "the port is unbound", func() bool { return old.memory.Declaration().Binds["p1"].Bind == nil })
	waitfor.True(t, "the old hub asks its session", func() bool { return old.hub.Stats().Doubts > 0 })
	many(t, old, present, func() {
		if old.memory.Declaration().Binds["p1"].Bind != nil {
			t.Fatal("the old session has bound the deleted port")
		}
	})
}

// A host has left a hub, and then gets a port. The session that the hub still has does not release the
// port.
func TestOldSessionReleasesNoNewPort(t *testing.T) {
	old, present, _ := twoHubs(t, nil, "port1")
	waitfor.True(t, "the port is bound", func() bool { return old.memory.Declaration().Binds["p1"].Bind != nil })
	waitfor.True(t, "the old hub asks its session", func() bool { return old.hub.Stats().Doubts > 0 })
	generation := old.memory.Declaration().Binds["p1"].Generation
	many(t, old, present, func() {
		if now := old.memory.Declaration().Binds["p1"].Generation; now != generation {
			t.Fatalf("the old session has released the new port: generation %d became %d", generation, now)
		}
	})
}

// If somebody else deletes the binding of a port that its host still has, the hub binds the port again
// after a report of the host.
func TestReportSettlesABinding(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(portObject(1, "n1", ""))
	r.host(1, locals("port1")...)
	r.settled()
	waitfor.True(t, "the port is bound", func() bool { return r.memory.Declaration().Binds["p1"].Bind != nil })
	generation := r.memory.Declaration().Binds["p1"].Generation
	r.memory.Put(store.Object{Kind: store.KindBind, ID: "p1"})
	waitfor.True(t, "the port is bound again", func() bool {
		b := r.memory.Declaration().Binds["p1"]
		return b.Bind != nil && b.Generation != generation
	})
	if r.hub.Stats().Doubts == 0 {
		t.Error("the hub has not asked the host for a report")
	}
	r.settled()
}
