// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// This file divides the state of a session into parts, each of which fits one message to
// the engine. Part 0 has everything but the rings from partRings on. Each further part has
// partRings rings. A message of the front end changes one ring, so it makes the back end
// store one part and not the whole device. Sessions of up to 16 queue pairs have only
// part 0, as in earlier versions.

// partRings is the number of rings of a part. Their 96 eventfds, 35 other descriptors and
// two sockets are fewer than the 253 that a message may carry.
const partRings = 32

// Part is a part of a session's state. FDs are duplicates of its descriptors, which the
// owner of the part closes.
type Part struct {
	Number int
	Blob   []byte
	FDs    []int
}

// Close closes the descriptors of the part.
func (p *Part) Close() { closeAll(p.FDs) }

func closeParts(parts []Part) {
	for i := range parts {
		parts[i].Close()
	}
}

// rings is the JSON text of a part other than part 0. The descriptors in Vrings are indexes into the part's
// FDs.
type rings struct {
	Vrings []vringState `json:"vrings"`
}

// Parts returns the number of parts of a session with this number of queue pairs.
func Parts(pairs int) int { return max((2*pairs+partRings-1)/partRings, 1) }

// partOf returns the first ring of a part, and the ring behind its last one.
func partOf(number, rings int) (first, end int) {
	return min(number*partRings, rings), min((number+1)*partRings, rings)
}

// staleParts has the parts that have changed since the back end has taken them.
type staleParts []bool

// newStaleParts returns the parts of a new session, none of which the back end has.
func newStaleParts(pairs int) staleParts {
	s := make(staleParts, Parts(pairs))
	s.mark()
	return s
}

func (s staleParts) mark() {
	for i := range s {
		s[i] = true
	}
}

// note compares two states and marks the parts that differ. runningChanged says that part 0 has
// changed otherwise. It reports whether any part has changed.
func (s staleParts) note(previous, present *frontEnd, runningChanged bool) (changed bool) {
	for i := range s {
		first, end := partOf(i, len(present.Vrings))
		if !slices.Equal(previous.Vrings[first:end], present.Vrings[first:end]) {
			s[i], changed = true, true
		}
	}
	a, b := *previous, *present
	a.Vrings, b.Vrings, a.dropped, b.dropped = nil, nil, nil, nil
	if runningChanged || !reflect.DeepEqual(a, b) {
		s[0], changed = true, true
	}
	return changed
}

// Snapshot returns all parts of the state from which a new control process continues the
// session, in the order in which they are stored. Snapshot is safe for concurrent use.
func (s *Session) Snapshot() []Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale.mark()
	return s.parts()
}

// Changes returns the parts that neither Snapshot nor Changes has returned since they have
// changed, in the order in which they are stored. It is safe for concurrent use, and
// Backend.Changed may call it.
func (s *Session) Changes() []Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parts()
}

// parts makes the stale parts, which are then no longer stale. Part 0 is the last one, so
// that a control process that is killed in between has announced nothing: the next one
// finds a device that runs or a message that is not answered, and repeats the change. After
// a disconnection part 0 is the first one, because Restore reads no other part then.
func (s *Session) parts() (list []Part) {
	for i := len(s.stale) - 1; i >= 0; i-- {
		if s.stale[i] {
			list = append(list, s.part(i))
		}
	}
	clear(s.stale)
	if s.conn == nil {
		slices.Reverse(list)
	}
	return list
}

func (s *Session) part(number int) Part {
	p := Part{Number: number}
	add := func(fd int) int {
		dup, err := duplicate(fd)
		if err != nil {
			s.log.Error("vhost-user: duplicate of a descriptor", "error", err)
			return -1
		}
		p.FDs = append(p.FDs, dup)
		return len(p.FDs) - 1
	}
	first, end := partOf(number, len(s.front.Vrings))
	front := s.front
	front.Regions, front.Vrings = slices.Clone(s.front.Regions), slices.Clone(s.front.Vrings[first:end])
	var state any = rings{front.Vrings}
	if number == 0 {
		front.eachFD(func(fd *int) { *fd = add(*fd) })
		snap := snapshot{Version: snapshotVersion, Front: front, Running: s.running, Conn: -1, Listener: -1}
		if s.conn != nil {
			snap.Conn = addConn(s.conn, add)
		}
		if s.listener != nil {
			snap.Listener = addConn(s.listener, add)
		}
		state = snap
	} else {
		for i := range front.Vrings {
			front.Vrings[i].eachFD(func(fd *int) { *fd = add(*fd) })
		}
	}
	p.Blob, _ = json.Marshal(state) // error ignored: JSON can encode any state
	return p
}

// join adds the rings of the parts behind part 0 to a state of pairs queue pairs. Without
// a connection these rings are not set up.
func (f *frontEnd) join(parts []Part, pairs int, connected bool) error {
	fresh := newFrontEnd(pairs).Vrings
	if first, end := partOf(0, len(fresh)); len(f.Vrings) != end-first {
		return fmt.Errorf("%d vrings, expected %d", len(f.Vrings), end-first)
	}
	f.Vrings = append(f.Vrings, fresh[len(f.Vrings):]...)
	if !connected {
		return nil
	}
	found := 1
	for _, p := range parts {
		if p.Number < 1 || p.Number >= Parts(pairs) {
			continue
		}
		found++
		first, end := partOf(p.Number, len(f.Vrings))
		var r rings
		if err := json.Unmarshal(p.Blob, &r); err != nil {
			return fmt.Errorf("part %d: %w", p.Number, err)
		}
		if len(r.Vrings) != end-first {
			return fmt.Errorf("part %d: %d vrings, expected %d", p.Number, len(r.Vrings), end-first)
		}
		for i := range r.Vrings {
			if err := adoptFDs(r.Vrings[i].eachFD, p.FDs); err != nil {
				return fmt.Errorf("part %d: %w", p.Number, err)
			}
		}
		copy(f.Vrings[first:end], r.Vrings)
	}
	if found != Parts(pairs) {
		return fmt.Errorf("%d of %d parts", found, Parts(pairs))
	}
	return nil
}
