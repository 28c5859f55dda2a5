package control

import (
	"strings"
	"sync"
	"time"

	"weft/api"
	"weft/conntrack"
	"weft/internal/shm"
)

const (
	// eventInterval is the time between two looks at the ring of connection events
	// while somebody follows them, eventChunk the most that are taken at one: 50,000
	// a second. What comes faster fills the ring, and is lost and counted there.
	eventInterval = 10 * time.Millisecond
	eventChunk    = 500
)

// connectionEvents passes on to monitors what the workers tell of connections.
// mu comes before Daemon.mu.
type connectionEvents struct {
	d *Daemon

	mu      sync.Mutex
	all     map[*connectionFollower]struct{}
	reading bool
	workers *workers // whose ring is read
	ring    *shm.Consumer
	lost    uint64 // the ring's count, as last seen
}

// connectionFollower is one monitor that follows connections.
type connectionFollower struct {
	to    *monitor
	kinds uint8   // see conntrack.Memory.Watch
	zone  *uint16 // nil: all
}

func (c *connectionEvents) begin(f *connectionFollower) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[*connectionFollower]struct{}{}
	}
	c.all[f] = struct{}{}
	c.d.mu.RLock()
	defer c.d.mu.RUnlock()
	c.follow()
	if len(c.all) == 1 { // what an earlier reader has left is nobody's
		for c.ring != nil && c.ring.Next() != nil {
		}
		c.release()
	}
	if !c.reading { // or the reader has not yet seen that there was none
		c.reading = true
		go c.read()
	}
	c.watch()
}

func (c *connectionEvents) end(f *connectionFollower) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, f)
	c.d.mu.RLock()
	defer c.d.mu.RUnlock()
	c.follow()
	c.watch()
}

// follow turns to the present engine's table. Caller holds mu and Daemon.mu.
func (c *connectionEvents) follow() {
	if c.workers == c.d.workers {
		return
	}
	if c.workers, c.ring = c.d.workers, nil; c.workers != nil {
		c.ring = c.workers.mem.Connections.Events()
		c.lost = c.workers.mem.Connections.EventsLost()
		c.watch()
	}
}

// watch asks the workers for what anybody wants. Caller holds mu and Daemon.mu.
func (c *connectionEvents) watch() {
	kinds, zone, first := uint8(0), (*uint16)(nil), true
	for f := range c.all {
		kinds |= f.kinds
		if first {
			zone, first = f.zone, false
		} else if zone != nil && (f.zone == nil || *f.zone != *zone) {
			zone = nil
		}
	}
	if c.workers != nil {
		c.workers.mem.Connections.Watch(kinds, zone)
	}
}

func (c *connectionEvents) release() {
	if c.ring != nil {
		c.ring.Release()
		c.lost = c.workers.mem.Connections.EventsLost()
	}
}

// read passes events on until nobody follows.
func (c *connectionEvents) read() {
	for c.turn() {
		time.Sleep(eventInterval)
	}
}

func (c *connectionEvents) turn() (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) == 0 {
		c.reading = false
		return false
	}
	c.d.mu.RLock()
	defer c.d.mu.RUnlock()
	if c.follow(); c.ring == nil {
		return true
	}
	for range eventChunk {
		msg := c.ring.Next()
		if msg == nil {
			break
		}
		if e, err := conntrack.ParseEvent(msg); err == nil {
			c.pass(&e)
		}
	}
	was := c.lost
	c.release()
	for f := range c.all {
		f.to.lost.Add(c.lost - was)
	}
	return true
}

func (c *connectionEvents) pass(e *conntrack.Event) {
	var out *api.Event // made once somebody wants it
	for f := range c.all {
		if f.kinds>>e.Kind&1 == 0 || f.zone != nil && *f.zone != e.Entry.Orig.Zone {
			continue
		}
		if out == nil {
			conn := connectionJSON(&e.Entry, string(e.Entry.AppendTo(nil, conntrack.FormatOptions{})))
			out = &api.Event{Time: time.Now(), Kind: api.EventConnection, Event: e.Kind.String(), Reason: e.Reason.String(), Connection: &conn}
		}
		select {
		case f.to.events <- out:
		default:
			f.to.lost.Add(1)
		}
	}
}

// followConnections is what the query's words ask for.
func followConnections(to *monitor, zone, kinds string) (*connectionFollower, error) {
	f := &connectionFollower{to: to, kinds: conntrack.AllEvents}
	if zone != "" {
		filter, err := conntrack.ParseFilter([]string{"zone=" + zone})
		if err != nil {
			return nil, asInput(err)
		}
		f.zone = filter.Zone
	}
	if kinds != "" {
		f.kinds = 0
		for _, word := range strings.Split(kinds, ",") {
			k, ok := conntrack.ParseEventKind(word)
			if !ok {
				return nil, inputf("events=%s: expected new, update or destroy", word)
			}
			f.kinds |= 1 << k
		}
	}
	return f, nil
}
