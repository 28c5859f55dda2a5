// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"iter"
	"maps"
)

// sessionSet is a set of sessions. Most sets have one session at most, and need no map:
// a hub has two sets for each port.
type sessionSet struct {
	one  *session // the only one; nil if there is none or the map has all
	more map[*session]struct{}
}

func (t *sessionSet) add(s *session) {
	switch {
	case t.more != nil:
		t.more[s] = struct{}{}
	case t.one == nil || t.one == s:
		t.one = s
	default:
		t.more = map[*session]struct{}{t.one: {}, s: {}}
		t.one = nil
	}
}

func (t *sessionSet) remove(s *session) {
	if t.one == s {
		t.one = nil
	}
	if delete(t.more, s); len(t.more) == 0 {
		t.more = nil
	}
}

func (t *sessionSet) has(s *session) bool {
	_, more := t.more[s]
	return more || t.one == s
}

func (t *sessionSet) empty() bool { return t.one == nil && t.more == nil }

// all iterates over the sessions. The loop may remove them.
func (t *sessionSet) all() iter.Seq[*session] {
	if t.one == nil {
		return maps.Keys(t.more)
	}
	return func(yield func(*session) bool) { yield(t.one) }
}
