// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// This file divides the state of a session into parts. Each part fits into one message to the engine, which
// stores the parts for the next control process. Part 0 has the first partRings rings and all other state.
// Each further part has partRings rings. Most messages of the front end change only one ring, so only one
// part must be stored again. Sessions of up to 16 queue pairs have only part 0, as in earlier versions.

// partRings is the number of rings in a part. Part 0 has 96 eventfds of rings, up to 35 other
// descriptors and two sockets. That is below the 253 descriptors that one message may carry.
const partRings = 32

// Part is a part of a session's state, which the engine stores (see the top of this file). FDs are
// duplicates of the descriptors in it. Whoever owns the Part closes them.
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

// rings is the JSON form of a part other than part 0. Descriptors in Vrings are indexes into Part.FDs.
type rings struct {
	Vrings []vringState `json:"vrings"`
}

// Parts returns the number of parts of a session with this number of queue pairs.
func Parts(pairs int) int { return max((2*pairs+partRings-1)/partRings, 1) }

// partOf returns the index of a part's first ring, and the index after its last ring. rings is the
// number of rings of the session.
func partOf(number, rings int) (first, end int) {
	return min(number*partRings, rings), min((number+1)*partRings, rings)
}

// staleParts has a mark for each part of a session's state that has changed since Session.Changes last
// returned it. The index is the part's number.
type staleParts []bool

// newStaleParts returns the marks of a new session. All parts are marked, because the engine has stored
// none.
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

// note marks the parts in which the states previous and present differ. If runningChanged is true, it also
// marks part 0. It reports whether it has marked any part.
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

// Snapshot returns all parts of the state, in the order in which the engine must store them. A new
// control process continues the session from them. Any goroutine may call Snapshot. The caller owns
// the parts.
func (s *Session) Snapshot() []Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale.mark()
	return s.parts()
}

// Changes returns the parts that have changed since Snapshot or Changes last returned them, in the
// order in which the engine must store them. Any goroutine may call it, also within Backend.Changed.
// The caller owns the parts.
func (s *Session) Changes() []Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parts()
}

// parts returns the marked parts and clears the marks. Part 0 is the last one. If the control process is
// killed before part 0 is stored, the stored part 0 still has the state before the change, and the next
// control process repeats the change. After a disconnection, part 0 is the first one: it says that there is
// no connection, and Restore then ignores the other parts.
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

// join appends the rings of all parts after part 0 to f, which has the rings of part 0. pairs is the number
// of queue pairs. If connected is false, there is no front end, and join appends rings that are not set up.
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
