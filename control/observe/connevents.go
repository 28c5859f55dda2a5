// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"sync"
	"time"

	"weft/api"
	"weft/conntrack"
	"weft/control/usererr"
	"weft/internal/shm"
)

const (
	// eventInterval is the interval between two reads of the event ring. eventChunk is
	// the largest number of events of one read. Together they allow 50,000 events a
	// second. Further events are lost and counted.
	eventInterval = 10 * time.Millisecond
	eventChunk    = 500
)

// ConnectionEvents passes events about tracked connections to monitors. ConnectionEvents.mu is taken
// before the lock of Engine.Hold.
type ConnectionEvents struct {
	engine Engine

	mu        sync.Mutex
	followers map[*ConnectionFollower]struct{}
	reading   bool
	workers   Workers // the workers whose event ring is read
	ring      *shm.Consumer
	lost      uint64 // number of lost events at the last read
}

func NewConnectionEvents(engine Engine) *ConnectionEvents {
	return &ConnectionEvents{engine: engine, followers: map[*ConnectionFollower]struct{}{}}
}

// ConnectionFollower says which events about tracked connections a monitor gets.
type ConnectionFollower struct {
	monitor *Monitor
	kinds   uint8   // set of event kinds, bit k for kind k, see conntrack.Memory.Watch
	zone    *uint16 // nil: all zones
}

func (c *ConnectionEvents) Begin(f *ConnectionFollower) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.followers[f] = struct{}{}
	w, release := c.engine.Hold()
	defer release()
	c.follow(w)
	if len(c.followers) == 1 { // the ring may have events that an earlier reader did not want
		for c.ring != nil && c.ring.Next() != nil {
		}
		c.release()
	}
	if !c.reading { // if a reader runs for another follower, it serves this follower too
		c.reading = true
		go c.read()
	}
	c.watch()
}

func (c *ConnectionEvents) End(f *ConnectionFollower) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.followers, f)
	w, release := c.engine.Hold()
	defer release()
	c.follow(w)
	c.watch()
}

// follow makes w the present workers, whose event ring is read from now on. The caller holds c.mu and
// Engine.Hold.
func (c *ConnectionEvents) follow(w Workers) {
	if c.workers == w {
		return
	}
	if c.workers, c.ring = w, nil; w != nil {
		table := w.Connections()
		c.ring, c.lost = table.Events(), table.EventsLost()
		c.watch()
	}
}

// watch makes the workers report only the kinds and the zone of events that some follower wants. The
// caller holds c.mu and Engine.Hold.
func (c *ConnectionEvents) watch() {
	kinds, zone, first := uint8(0), (*uint16)(nil), true
	for f := range c.followers {
		kinds |= f.kinds
		if first {
			zone, first = f.zone, false
		} else if zone != nil && (f.zone == nil || *f.zone != *zone) {
			zone = nil
		}
	}
	if c.workers != nil {
		c.workers.Connections().Watch(kinds, zone)
	}
}

func (c *ConnectionEvents) release() {
	if c.ring != nil {
		c.ring.Release()
		c.lost = c.workers.Connections().EventsLost()
	}
}

func (c *ConnectionEvents) read() {
	for c.turn() {
		time.Sleep(eventInterval)
	}
}

func (c *ConnectionEvents) turn() (active bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.followers) == 0 {
		c.reading = false
		return false
	}
	w, release := c.engine.Hold()
	defer release()
	if c.follow(w); c.ring == nil {
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
	for f := range c.followers {
		f.monitor.lost.Add(c.lost - was)
	}
	return true
}

func (c *ConnectionEvents) pass(e *conntrack.Event) {
	var out Describe // made when the first follower wants it
	for f := range c.followers {
		if f.kinds>>e.Kind&1 == 0 || f.zone != nil && *f.zone != e.Entry.Orig.Zone {
			continue
		}
		if out == nil {
			conn := Connection(&e.Entry, string(e.Entry.AppendTo(nil, conntrack.FormatOptions{})))
			event := &api.Event{Time: time.Now(), Kind: api.EventConnection, Event: e.Kind.String(), Reason: e.Reason.String(), Connection: &conn}
			out = func() *api.Event { return event }
		}
		f.monitor.post(out)
	}
}

// FollowConnections makes a follower for a monitor. zone is a number; "": all zones. kindList is a
// comma-separated list of new, update and destroy; "": all kinds.
func FollowConnections(monitor *Monitor, zone, kindList string) (*ConnectionFollower, error) {
	f := &ConnectionFollower{monitor: monitor, kinds: conntrack.AllEvents}
	if zone != "" {
		filter, err := conntrack.ParseFilter([]string{"zone=" + zone})
		if err != nil {
			return nil, usererr.Mark(err)
		}
		f.zone = filter.Zone
	}
	if kindList != "" {
		f.kinds = 0
		for _, word := range strings.Split(kindList, ",") {
			k, ok := conntrack.ParseEventKind(word)
			if !ok {
				return nil, usererr.Errorf("events=%s: expected new, update or destroy", word)
			}
			f.kinds |= 1 << k
		}
	}
	return f, nil
}

// Connection converts the connection e to the API's type. line is the connection in the format of
// ovs-dpctl.
func Connection(e *conntrack.Entry, line string) api.Connection {
	c := api.Connection{
		Protocol: conntrack.ProtoName(e.Orig.Proto), Zone: e.Orig.Zone, Mark: e.Mark, TimeoutS: e.TimeoutS,
		Replied: e.Replied, Timer: e.Class.String(), Line: line,
	}
	c.Orig, c.Reply = tuple(&e.Orig), tuple(&e.Reply)
	return c
}

func tuple(t *conntrack.Tuple) api.Tuple {
	src, dst := t.Addrs()
	return api.Tuple{Src: src.String(), Dst: dst.String(), SrcPort: t.SrcPort, DstPort: t.DstPort}
}

// Expectation converts an expected connection, which another connection has announced, to the API's
// type.
func Expectation(e *conntrack.Expected) api.Expectation {
	return api.Expectation{Protocol: conntrack.ProtoName(e.Tuple.Proto), Tuple: tuple(&e.Tuple), Parent: tuple(&e.Parent),
		Zone: e.Tuple.Zone, TimeoutS: e.TimeoutS, Line: string(e.AppendTo(nil))}
}
