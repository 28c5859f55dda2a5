// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"fmt"
	"testing"
)

// The hub writes the status of all hosts within storeTurns turns, and of one in storeTurns
// hosts in a turn. It writes a status again only after a change.
func TestStatusIsWrittenInTurns(t *testing.T) {
	const each = 7
	h := &Hub{sessions: map[string]*session{}}
	for n := range each * storeTurns {
		id := fmt.Sprint("h", n)
		h.sessions[id] = &session{host: id, number: n, applied: 1}
	}
	stored, written := map[string]int64{}, map[string]int{}
	for turn := range 2 * storeTurns {
		list := h.statusSince(stored, turn%storeTurns)
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
	if list := h.statusSince(stored, 3); len(list) != 1 || list[0].GetApplied() != 2 {
		t.Errorf("after a change: %v", list)
	}
}
