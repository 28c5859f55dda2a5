package watchdog

import (
	"fmt"
	"sync"
	"time"
)

// What a port pays for a hang.
const (
	// firstHold is for how long a port is kept from the engines after its first hang;
	// each further one doubles it, up to mostHold.
	firstHold = time.Second
	mostHold  = time.Minute
	// HangsForGood is how many engines a port may hang before it stays out until the
	// operator deletes and adds it. Only hangs that are no accident count: those in
	// which it alone was in hand, and one for each other port that it was in hand with.
	HangsForGood = 3
	// forgetAfter is after how long a hang no longer counts.
	forgetAfter = 10 * time.Minute
)

// Suspects remembers which ports were in hand when engines hung. Any goroutine may
// call it.
type Suspects struct {
	mu    sync.Mutex
	ports map[uint32]*record
}

type record struct {
	hangs   []pastHang // of the last forgetAfter, or since it is out for good
	until   time.Time  // the port is held
	forGood bool
	reason  string
	total   uint64 // hangs ever
}

type pastHang struct {
	at      time.Time
	partner uint32 // the other port in hand; 0: none
}

// NewSuspects knows of none.
func NewSuspects() *Suspects { return &Suspects{ports: map[uint32]*record{}} }

// Blame notes a hang and returns the ports that are held for it. foreign tells of a
// port whether its memory and descriptors are another process's: where a guest and a
// device of this machine's kernel were in hand, it is the guest. Two guests pay both,
// for nobody can tell which memory a copy stands still in. text is for the operator.
func (s *Suspects) Blame(h Hang, now time.Time, foreign func(port uint32) bool, text string) []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := h.Suspects
	if len(list) == 2 && foreign(list[0].Port) != foreign(list[1].Port) {
		if foreign(list[1].Port) {
			list = list[1:]
		}
		list = list[:1]
	}
	var ports []uint32
	for i, suspect := range list {
		past := pastHang{at: now}
		if len(list) == 2 {
			past.partner = list[1-i].Port
		}
		r := s.ports[suspect.Port]
		if r == nil {
			r = &record{}
			s.ports[suspect.Port] = r
		}
		r.note(past, text)
		ports = append(ports, suspect.Port)
	}
	return ports
}

func (r *record) note(past pastHang, text string) {
	recent := r.hangs[:0]
	for _, h := range r.hangs {
		if past.at.Sub(h.at) < forgetAfter {
			recent = append(recent, h)
		}
	}
	r.hangs = append(recent, past)
	r.total++
	r.reason = text
	hold := mostHold
	if n := len(r.hangs); n <= 6 { // beyond, the shift exceeds mostHold
		hold = min(firstHold<<(n-1), mostHold)
	}
	r.until = past.at.Add(hold)
	r.forGood = r.forGood || r.guilty() >= HangsForGood
}

// guilty counts the hangs that are no accident.
func (r *record) guilty() int {
	partners, n := map[uint32]bool{}, 0
	for _, h := range r.hangs {
		if h.partner == 0 {
			n++
		} else if !partners[h.partner] {
			partners[h.partner] = true
			n++
		}
	}
	return n
}

// Held is the error for whoever would give a port to an engine while it is held, nil
// once it no longer is.
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

// Forget is for a port that is deleted: its number may become another's.
func (s *Suspects) Forget(port uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ports, port)
}

// Hangs is how many engines a port has hung since it was added.
func (s *Suspects) Hangs(port uint32) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.ports[port]; r != nil {
		return r.total
	}
	return 0
}
