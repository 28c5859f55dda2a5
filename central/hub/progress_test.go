// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"fmt"
	"testing"

	"weft/central/store"
	"weft/central/wire"
)

// The hub writes the status of all hosts within storeTurns turns, and of one in storeTurns
// hosts in a turn. It writes a status again only after a change, and less often if only the
// applied revision has changed.
func TestStatusIsWrittenInTurns(t *testing.T) {
	const each = 7
	h := &Hub{sessions: map[string]*session{}}
	for n := range each * storeTurns {
		id := fmt.Sprint("h", n)
		h.sessions[id] = &session{host: id, number: n, applied: 1}
	}
	stored, written := map[string]storedStatus{}, map[string]int{}
	for turn := range 2 * storeTurns {
		list := h.statusSince(stored, turn)
		if len(list) > each {
			t.Errorf("turn %d: %d hosts, expected at most %d", turn, len(list), each)
		}
		for _, s := range list {
			written[s.GetHost()]++
		}
	}
	for id := range h.sessions {
		if written[id] != 1 {
			t.Errorf("the status of host %s is written %d times", id, written[id])
		}
	}
	h.sessions["h3"].applied = 2
	if list := h.statusSince(stored, 3+storeAppliedTurns-storeTurns); len(list) != 0 {
		t.Errorf("too early after a change: %v", list)
	}
	if list := h.statusSince(stored, 3+storeAppliedTurns); len(list) != 1 || list[0].GetApplied() != 2 {
		t.Errorf("after a change: %v", list)
	}
	h.sessions["h3"].version = "newer" // the host was upgraded, and has applied the same revision
	if list := h.statusSince(stored, 3+storeAppliedTurns+storeTurns); len(list) != 1 || list[0].GetVersion() != "newer" {
		t.Errorf("after an upgrade: %v", list)
	}
	h.sessions["h3"].trouble = "no route"
	if list := h.statusSince(stored, 3+storeAppliedTurns+2*storeTurns); len(list) != 1 || list[0].GetTrouble() != "no route" {
		t.Errorf("after trouble: %v", list)
	}
}

// A restore of etcd from a backup lowers its revision. A revision that a host applied before
// the restore says nothing about the revisions after it.
func TestRestoredStoreIsNotApplied(t *testing.T) {
	h, s := fleetOfOne(t, noStore{})
	applied := func(revision int64) {
		t.Helper()
		if err := h.receive(s, &wire.FromHost{Message: &wire.FromHost_Applied{Applied: &wire.Applied{Revision: revision}}}); err != nil {
			t.Fatal(err)
		}
	}
	round := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.round()
		h.endRevision(s, true)
	}
	h.take(100, nil)
	round()
	if applied(100); s.applied != 100 {
		t.Fatalf("the host has applied revision %d, want 100", s.applied)
	}
	(*sink)(h).Reset(10, []store.Object{
		{Kind: store.KindNet, ID: "n1", Message: &wire.Net{Id: "n1", Name: "renamed", Vni: 1}},
		{Kind: store.KindHost, ID: "h1", Message: &wire.Host{Id: "h1", Name: "h1", Endpoint: []byte{192, 0, 2, 1}}},
		{Kind: store.KindPort, ID: "p1", Message: &wire.Port{Id: "p1", Name: "p1", Net: "n1", Mac: []byte{2, 0, 0, 0, 0, 1}}},
	})
	round()
	if applied(100); h.allApplied(10) { // a late report
		t.Error("the host has applied revision 10 before it says so")
	}
	if applied(10); !h.allApplied(10) {
		t.Errorf("the host has applied revision %d, want 10", s.applied)
	}
}
