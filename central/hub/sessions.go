// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"iter"
	"maps"
)

// sessionSet is a set of sessions. Most sets have at most one session and then need no
// map. This saves memory, because a hub has two sets for each port.
type sessionSet struct {
	single *session // the only member; nil if the set is empty, or if the map has the members
	many   map[*session]struct{}
}

func (t *sessionSet) add(s *session) {
	switch {
	case t.many != nil:
		t.many[s] = struct{}{}
	case t.single == nil || t.single == s:
		t.single = s
	default:
		t.many = map[*session]struct{}{t.single: {}, s: {}}
		t.single = nil
	}
}

func (t *sessionSet) remove(s *session) {
	if t.single == s {
		t.single = nil
	}
	if delete(t.many, s); len(t.many) == 0 {
		t.many = nil
	}
}

func (t *sessionSet) contains(s *session) bool {
	_, found := t.many[s]
	return found || t.single == s
}

func (t *sessionSet) empty() bool { return t.single == nil && t.many == nil }

// members iterates over the sessions. The body of the loop may remove sessions from the
// set.
func (t *sessionSet) members() iter.Seq[*session] {
	if t.single == nil {
		return maps.Keys(t.many)
	}
	return func(yield func(*session) bool) { yield(t.single) }
}
