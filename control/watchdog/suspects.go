// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"fmt"
	"sync"
	"time"
)

const (
	// firstHold is how long engines do not get a port that made an engine hang for the first time. Each
	// further hang doubles this time, up to mostHold.
	firstHold = time.Second
	mostHold  = time.Minute
	// Sometimes either of two ports may have caused a hang, and nothing proves which one. After the first
	// such hang, engines still get both ports, because one of them is innocent. After each further one
	// within forgetAfter, engines do not get them for firstHold, twice firstHold and so on, up to
	// mostSharedHold.
	mostSharedHold = 8 * time.Second
	// HangsForGood is the number of hangs after which a port is held back until it is
	// deleted. A hang that one of two ports may have caused, without a proof, does not count.
	HangsForGood = 3
	// forgetAfter is the age after which a hang no longer counts.
	forgetAfter = 10 * time.Minute
)

// Suspects records the ports that were in use when an engine hung. Its methods are safe for concurrent
// use.
type Suspects struct {
	mu    sync.Mutex
	ports map[uint32]*record
}

type record struct {
	hangs   []pastHang // hangs within forgetAfter, oldest first
	until   time.Time  // end of the time for which the port is held back
	forGood bool       // the port is held back until it is deleted
	reason  string     // description of the port's last hang, for the operator
	total   uint64     // number of hangs since the port was added
}

type pastHang struct {
	time   time.Time
	proven bool // no other port can have caused the hang
}

// NewSuspects returns Suspects with no recorded hang.
func NewSuspects() *Suspects { return &Suspects{ports: map[uint32]*record{}} }

// Blame records a hang and returns the ports that engines do not get from now on. If it is proven in whose
// memory the worker hangs, Blame blames only the owners of the memory. Otherwise it blames each port in
// use, because the worker may hang in the memory of either port while it copies a frame between them. But
// if one of the two is a guest's port and the other a kernel device, it blames only the guest's port.
// foreign reports whether a port is a guest's. text describes the hang.
func (s *Suspects) Blame(h Hang, now time.Time, foreign func(port uint32) bool, text string) (held []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ports, proven := h.blamed(foreign)
	for _, port := range ports {
		r := s.ports[port]
		if r == nil {
			r = &record{}
			s.ports[port] = r
		}
		if r.note(pastHang{time: now, proven: proven}, text) {
			held = append(held, port)
		}
	}
	return held
}

// blamed returns the ports that may have caused the hang. proven is true if they certainly have.
func (h Hang) blamed(foreign func(port uint32) bool) (ports []uint32, proven bool) {
	if len(h.Owners) > 0 {
		return h.Owners, true
	}
	list := h.Suspects
	if len(list) == 2 && foreign(list[0].Port) != foreign(list[1].Port) {
		if foreign(list[1].Port) {
			list = list[1:]
		}
		list = list[:1]
	}
	for _, suspect := range list {
		ports = append(ports, suspect.Port)
	}
	return ports, len(ports) == 1
}

// note adds a hang to the record of a port. held reports whether the port is held back because of it.
func (r *record) note(past pastHang, text string) (held bool) {
	recent := r.hangs[:0]
	for _, h := range r.hangs {
		if past.time.Sub(h.time) < forgetAfter {
			recent = append(recent, h)
		}
	}
	r.hangs = append(recent, past)
	r.total++
	r.reason = text
	n, most := r.guilty(), mostHold
	if !past.proven {
		n, most = len(r.hangs)-n-1, mostSharedHold
	}
	if n == 0 {
		return false
	}
	hold := most
	if n <= 6 { // the doubled time would exceed mostHold
		hold = min(firstHold<<(n-1), most)
	}
	if until := past.time.Add(hold); until.After(r.until) {
		r.until = until
	}
	r.forGood = r.forGood || r.guilty() >= HangsForGood
	return true
}

// guilty returns the number of hangs that were certainly caused by this port.
func (r *record) guilty() (n int) {
	for _, h := range r.hangs {
		if h.proven {
			n++
		}
	}
	return n
}

// Held returns an error with the reason while a port is held back, so that no engine may get it.
func (s *Suspects) Held(port uint32, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ports[port]
	switch {
	case r == nil:
		return nil
	case r.forGood:
		return fmt.Errorf("%s; that was the port's hang number %d, so it stays out: del-port and add-port try it again", r.reason, len(r.hangs))
	case now.Before(r.until):
		return fmt.Errorf("%s; tried again within %d s", r.reason, int(r.until.Sub(now).Seconds())+1)
	}
	return nil
}

// Forget removes a deleted port from the suspects, because its number may be used
// again.
func (s *Suspects) Forget(port uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ports, port)
}

// Hangs returns how often an engine hung while it used the port.
func (s *Suspects) Hangs(port uint32) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.ports[port]; r != nil {
		return r.total
	}
	return 0
}
