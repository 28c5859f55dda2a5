// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"testing"

	"weft/central/store"
	"weft/central/wire"
	"weft/internal/waitfor"
)

func groupObject(id string, protocols ...uint32) store.Object {
	g := &wire.Group{Id: id, Name: "group-" + id}
	for _, p := range protocols {
		g.Rules = append(g.Rules, &wire.GroupRule{Protocol: p, Group: id})
	}
	return store.Object{Kind: store.KindGroup, ID: id, Message: g}
}

func inGroups(o store.Object, groups ...string) store.Object {
	o.Message.(*wire.Port).Groups = groups
	return o
}

// A group's rules reach the hosts that have a port in it and no other host. The groups of a port
// reach all hosts of its network.
func TestRulesReachHostsOfTheGroup(t *testing.T) {
	r := newRig(t)
	r.net("n1", 100, false)
	r.memory.Put(groupObject("web", 6), groupObject("admin"), inGroups(portObject(1, "n1", ""), "admin", "web"), portObject(2, "n1", ""))
	r.host(1, locals("port1")...)
	two := r.host(2, locals("port2")...)
	r.settled()
	before := two.agent.Stats().Received
	r.memory.Put(groupObject("web", 17, 6))
	r.settled()
	r.memory.Put(inGroups(portObject(2, "n1", ""), "web"), inGroups(portObject(1, "n1", "")))
	r.settled()
	if now := two.agent.Stats().Received; now == before {
		t.Errorf("host 2 received nothing after %d bytes", before)
	}
	two.stop()
	r.memory.Put(groupObject("web", 1))
	r.startAgent(two) // from its file
	r.settled()
	r.memory.Put(inGroups(portObject(2, "n1", "")), store.Object{Kind: store.KindGroup, ID: "web"})
	r.settled()
}

// A host of 0.3.0 ignores groups, so it gets no port with groups, and loses a port that joins one. An
// upgraded host gets the port.
func TestNoGroupsForHostsOfPreviousVersion(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.codec = newPreviousCodec(t)
	r.start()
	r.net("n1", 100, false)
	r.memory.Put(groupObject("web", 6), inGroups(portObject(1, "n1", ""), "web"), portObject(2, "n1", ""))
	one := r.host(1, locals("port1", "port2")...)
	here := func(port uint64) bool { return one.recorder.Here(100, 0x020000000000+port) }
	waitfor.True(t, "host 1 has the port without groups, and the other is refused", func() bool { return here(2) && r.hub.Stats().Refused > 0 })
	if here(1) {
		t.Fatal("host 1 has the port with groups")
	}
	r.memory.Put(portObject(1, "n1", ""), inGroups(portObject(2, "n1", ""), "web"))
	waitfor.True(t, "host 1 has the port that left its groups, and lost the one that joined", func() bool { return here(1) && !here(2) })
	r.stop()
	r.codec = nil
	r.start()
	r.settled()
	if !here(1) || !here(2) {
		t.Errorf("after the upgrade: port 1 is on host 1: %t, port 2: %t", here(1), here(2))
	}
}
