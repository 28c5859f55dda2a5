// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofproto"
)

// This file has the queue of events that wait for a connection's peer. The queue is limited in
// bytes.

// event is a message to the peer that answers no request. It waits in the connection's queue.
type event struct {
	message []byte
	// encode makes the message, if message is nil. It runs in the goroutine that sends the events,
	// so that a change of a flow does not wait for the encoding.
	encode func() []byte
	bytes  int // bytes that the event counts against the queue's limit
}

// encoded returns the message of the event, which it encodes at the first call.
func (e *event) encoded() []byte {
	if e.message == nil {
		e.message = e.encode()
	}
	return e.message
}

// eventKind selects the number of bytes up to which the queue accepts an event. There are three such
// numbers, so the many frames of one port displace neither the few frames of other ports nor other
// events.
type eventKind uint8

const (
	eventChange   eventKind = iota // the peer must not miss it
	eventReserved                  // a frame within the reserve of its port
	eventFrame                     // any other frame
)

// limit returns the largest number of bytes that the queue may have with a new event of kind k.
func (k eventKind) limit() int {
	switch k {
	case eventFrame:
		return maxFrameBytes
	case eventReserved:
		return maxReservedBytes
	}
	return maxEventBytes
}

// post adds the message m to the queue as an event. If the queue is full, post drops and counts a
// frame. It ends the connection for any other event, because the peer would miss a change.
func (c *Conn) post(m []byte, kind eventKind) { c.postEvent(event{message: m, bytes: len(m)}, kind) }

func (c *Conn) postEvent(e event, kind eventKind) {
	switch {
	case c.ended || !c.ready:
		return
	case c.bytes+e.bytes <= kind.limit():
		c.events, c.bytes = append(c.events, e), c.bytes+e.bytes
	case kind != eventChange:
		c.dropped.Add(1)
		c.service.counts.Dropped.Add(1)
		return
	default:
		c.service.counts.Stalled.Add(1)
		c.ended = true
		c.net.Close()
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Conn) queued() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// maxEventWrite is the largest number of bytes of events in one write. A write for each
// packet_in would limit the rate of frames to the controller. A reply waits for at most one
// write of events.
const maxEventWrite = 64 << 10

// sendEvents writes queued events until the connection ends.
func (c *Conn) sendEvents() {
	var joined []byte
	for range c.wake {
		for {
			c.mu.Lock()
			batch, ended := c.events, c.ended
			c.events = nil
			c.mu.Unlock()
			if ended {
				return
			}
			if len(batch) == 0 {
				break
			}
			for len(batch) > 0 {
				var bytes int
				joined, bytes, batch = joinEvents(joined[:0], batch)
				c.showing.Lock()
				err := c.write(joined)
				c.showing.Unlock()
				c.mu.Lock()
				c.bytes -= bytes
				c.mu.Unlock()
				if err != nil {
					c.net.Close()
					return
				}
			}
		}
	}
}

// joinEvents appends the messages of the first events to b: as many as fit into one write, but at
// least one. "bytes" is the number of bytes that these events count in the queue. "rest" has the
// remaining events.
func joinEvents(b []byte, events []event) (joined []byte, bytes int, rest []event) {
	for n := range events {
		e := &events[n]
		m := e.encoded()
		if n > 0 && len(b)+len(m) > maxEventWrite {
			return b, bytes, events[n:]
		}
		b, bytes = append(b, m...), bytes+e.bytes
		*e = event{} // lets go of the copied rule, which the encoded message no longer needs
	}
	return b, bytes, nil
}

// setWatching includes the connection in the count Service.watchers, or excludes it.
func (c *Conn) setWatching(enabled bool) {
	if enabled != c.watching {
		c.watching = enabled
		if enabled {
			c.service.watchers.Add(1)
		} else {
			c.service.watchers.Add(-1)
		}
	}
}

// updateWatching includes the connection in the count Service.watchers if it wants events. It is
// called after a change of the monitors, of the wanted events or of the field "ended".
func (c *Conn) updateWatching() { c.setWatching(!c.ended && (len(c.monitors) > 0 || c.wantsEvents())) }

// wantsEvents reports whether the connection gets events that it did not request. A
// controller always does. A tool does after it has set the length of packet_ins, as
// with Open vSwitch.
func (c *Conn) wantsEvents() bool { return c.controller != nil || c.missLen != 0 }

// accepts reports whether the peer wants an event for this reason. masks[0] has a bit for each
// reason that a peer of the role master or equal wants, masks[1] for the role slave.
func (c *Conn) accepts(masks [2]uint32, reason uint8) bool {
	index := 0
	if c.master == ofp.RoleSlave {
		index = 1
	}
	return c.ready && !c.ended && c.wantsEvents() && masks[index]>>reason&1 != 0
}

// Count implements pipeline.Monitors. It returns the number of connections that want events about
// flows.
func (s *Service) Count() int { return int(s.watchers.Load()) }

// flowChange is a change of a rule. The events of all connections about the change share it.
type flowChange struct {
	event  ofp.FlowEvent
	rule   *ofproto.Rule
	match  openflow.Match
	copied *ofproto.Rule // copy of rule for the events; made by the first event
	bytes  int           // bytes that an event about the change counts against a queue's limit
}

// TellFlow reports a change of rule r to the connections. The caller holds the lock that
// guards the rule.
func (s *Service) TellFlow(event ofp.FlowEvent, r *ofproto.Rule) {
	change := flowChange{event: event, rule: r, match: r.Match.Unpack()}
	for _, c := range s.connections() {
		c.tellFlow(&change)
	}
}

// own returns a copy of the rule. The events are encoded later, and the rule may change before. The
// copy shares the match and the actions, which never change.
func (f *flowChange) own() *ofproto.Rule {
	if f.copied == nil {
		own := *f.rule
		f.copied = &own
		f.bytes = ruleBytes + 16*countActions(f.rule.Actions)
		for _, mask := range f.match.Mask {
			if mask != 0 {
				f.bytes += 16
			}
		}
	}
	return f.copied
}

// ruleBytes is the number of bytes that an event counts for a rule, without its match and
// actions.
const ruleBytes = 128

func (c *Conn) tellFlow(f *flowChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.watching {
		return
	}
	event, r := f.event, f.rule
	if event == ofp.FlowDeleted && r.Flags&openflow.SendFlowRem != 0 && c.accepts(c.async.FlowRemoved, ofp.RemovedReason(c.version, r.Why)) {
		version, nxm, now, tlvs, removed := c.version, c.nxm, nowNS(), c.service.setup.Switch.TLVs(), f.own()
		c.postEvent(eventOf(f, func() []byte { return ofp.AppendFlowRemoved(nil, version, nxm, removed, now, tlvs) }), eventChange)
	}
	own, flags := c.service.author.Load() == c, uint16(0)
	for _, m := range c.monitors {
		if m.flags&monitorBits[event] != 0 && m.selector.Selects(r, &f.match) {
			flags |= m.flags
		}
	}
	// The connection gets one event, even if several of its monitors select the rule.
	//
	// A monitor with the flag MonitorOnlyOwn also gets the changes of other connections, as in Open
	// vSwitch. ovs-ofctl sets this flag in each monitor of OpenFlow 1.4 and later. The flag only has
	// the effect that the connection's own changes are reported in full, and not abbreviated.
	switch {
	case flags == 0:
	case !own || flags&(ofp.MonitorOwn|ofp.MonitorOnlyOwn) != 0:
		version, tlvs, rule := c.version, c.service.setup.Switch.TLVs(), f.own()
		c.postEvent(eventOf(f, func() []byte {
			return monitorUpdate(version, func(b []byte) []byte {
				return ofp.AppendFlowUpdate(b, version, event, rule, flags&ofp.MonitorActions != 0, tlvs)
			})
		}), eventChange)
	case !c.abbreviated:
		c.abbreviated = true
		c.post(monitorUpdate(c.version, func(b []byte) []byte { return ofp.AppendAbbreviatedUpdate(b, c.version, c.changeXID) }), eventChange)
	}
}

// monitorBits has, by kind of event, the flag with which a monitor requests such events.
var monitorBits = [...]uint16{ofp.FlowAdded: ofp.MonitorAdd, ofp.FlowDeleted: ofp.MonitorDelete, ofp.FlowModified: ofp.MonitorModify}

// eventOf returns the event that reports the change f to a connection. encode makes the event's message
// later, in the goroutine that sends the events.
func eventOf(f *flowChange, encode func() []byte) event { return event{encode: encode, bytes: f.bytes} }

// monitorUpdate returns a message of a flow monitor. The function "update" appends the flow updates
// that the message contains to its argument.
func monitorUpdate(v ofp.Version, update func(b []byte) []byte) []byte {
	reply := ofp.NewMonitorUpdate(v)
	reply.Add(update)
	return slices.Concat(reply.Messages()...)
}

// ownChange tells the service which connection makes the change that is in progress. xid is the xid
// of its request. It implements Author.
type ownChange struct {
	conn *Conn
	xid  uint32
}

// Begin makes the connection the author of the change that follows.
func (a ownChange) Begin() {
	a.conn.mu.Lock()
	a.conn.changeXID, a.conn.abbreviated = a.xid, false
	a.conn.mu.Unlock()
	a.conn.service.author.Store(a.conn)
}

// End ends the change. Later changes have no author.
func (a ownChange) End() { a.conn.service.author.Store(nil) }

// nobody is the Author of a change that no connection has requested.
type nobody struct{}

func (nobody) Begin() {}
func (nobody) End()   {}

// monitoring reports whether the peer has requested flow monitors.
func (c *Conn) monitoring() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.monitors) > 0
}

// flowMonitor adds or removes flow monitors of the connection. It sends the present
// flows to new monitors that want them.
func (c *Conn) flowMonitor(r *ofp.Request) error {
	list, err := ofp.DecodeMonitors(r)
	if err != nil {
		return err
	}
	c.showing.Lock()
	defer c.showing.Unlock()
	if err := c.setMonitors(list); err != nil {
		return err
	}
	s, reply := c.service.setup.Switch, ofp.NewReply(r)
	for i := range list {
		m := &list[i]
		if m.Cancel || m.Flags&ofp.MonitorInitial == 0 {
			continue
		}
		var rules []ofproto.Rule
		for from, more := uint32(0), true; more; {
			rules, from, more = s.ScanRules(&m.Select, from, rules[:0])
			for i := range rules {
				reply.Add(func(b []byte) []byte {
					return ofp.AppendFlowUpdate(b, c.version, ofp.FlowInitial, &rules[i], m.Flags&ofp.MonitorActions != 0, r.TLVs)
				})
			}
			for _, m := range reply.Take() {
				if err := c.write(m); err != nil {
					return err
				}
			}
		}
	}
	return c.writeAll(reply)
}

// setMonitors adds, changes and removes the monitors of a request. After an error, nothing has
// changed.
func (c *Conn) setMonitors(list []ofp.Monitor) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	monitors := maps.Clone(c.monitors)
	for i := range list {
		m := &list[i]
		_, exists := monitors[m.ID]
		switch {
		case m.Cancel && !exists, m.Modify && !exists:
			return refused(openflow.ErrMonitorUnknown, fmt.Sprintf("flow_monitor %d: no such monitor", m.ID))
		case m.Cancel:
			delete(monitors, m.ID)
			continue
		case exists && !m.Modify:
			return refused(openflow.ErrMonitorExists, fmt.Sprintf("flow_monitor %d: expected an id that no monitor has", m.ID))
		case !exists && len(monitors) >= maxMonitors:
			return refused(openflow.ErrRequestEPERM, fmt.Sprintf("flow_monitor: expected at most %d monitors", maxMonitors))
		}
		monitors[m.ID] = &monitor{flags: m.Flags, selector: ofproto.NewSelector(&m.Select)}
	}
	if c.ended {
		return net.ErrClosed
	}
	if !c.service.monitors.add(c.holder, len(monitors)-len(c.monitors)) {
		return refused(openflow.ErrRequestEPERM, fmt.Sprintf("flow_monitor: expected at most %d monitors of all connections, and %d of one peer",
			maxBridgeMonitors, maxHolderMonitors))
	}
	c.monitors = monitors
	c.updateWatching()
	return nil
}

func (c *Conn) cancelMonitor(r *ofp.Request) error {
	id, err := ofp.DecodeMonitorCancel(r)
	if err != nil {
		return err
	}
	return c.setMonitors([]ofp.Monitor{{ID: id, Cancel: true}})
}

// roleRequest answers a request that sets or asks for the role of a controller. A peer that may
// only read cannot change its role, because as a master it would make the controllers slaves.
func (c *Conn) roleRequest(r *ofp.Request) error {
	role, generation, numbered, err := ofp.DecodeRole(r)
	if err != nil {
		return err
	}
	if c.role < Write && role != ofp.RoleNoChange {
		return refused(openflow.ErrRequestEPERM, c.peer+" may only read")
	}
	if role, generation, err = c.setRole(role, generation, numbered); err != nil {
		return err
	}
	return c.write(ofp.AppendRoleReply(nil, r, role, generation))
}

// setRole sets the role of a controller. If the controller becomes master, every other master
// becomes slave. numbered means that the request has a generation_id. setRole returns the present role
// and the newest generation_id.
func (c *Conn) setRole(role ofp.Role, generation uint64, numbered bool) (ofp.Role, uint64, error) {
	s := c.service
	s.mu.Lock() // held until the role is set, so that two controllers cannot become master at once
	defer s.mu.Unlock()
	if numbered && s.hasGen && int64(generation-s.generation) < 0 {
		return 0, 0, refused(openflow.ErrRoleStale, "role_request: a generation_id that is older than another controller's")
	}
	if numbered {
		s.generation, s.hasGen = generation, true
	}
	if generation = s.generation; !s.hasGen {
		generation = ^uint64(0)
	}
	if role == ofp.RoleMaster {
		for other := range s.conns {
			if other != c {
				other.demote(generation)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if role != ofp.RoleNoChange {
		c.master = role
	}
	return c.master, generation, nil
}

// demote makes the peer a slave if it is the master, and tells it so.
func (c *Conn) demote(generation uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.master != ofp.RoleMaster {
		return
	}
	c.master = ofp.RoleSlave
	if m := ofp.AppendRoleStatus(nil, c.version, ofp.RoleSlave, generation); m != nil {
		c.post(m, eventChange)
	}
}

// portInterval is the time between two comparisons of the ports with their earlier state.
const portInterval = 200 * time.Millisecond

// watchPorts sends port_status events about changed ports until ctx ends. It does nothing while
// no connection wants events.
func (s *Service) watchPorts(ctx context.Context) {
	tick := time.NewTicker(portInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.comparePorts()
		}
	}
}

// comparePorts sends events about the ports that have changed since the last call.
func (s *Service) comparePorts() {
	s.comparing.Lock()
	defer s.comparing.Unlock()
	if s.Count() == 0 {
		s.ports = nil
		return
	}
	present := s.presentPorts()
	if s.ports != nil {
		s.tellPorts(s.ports, present)
	}
	s.ports = present
}

// notePorts records the present ports when the first connection wants events. The connection
// calls it before it answers the peer, so that the peer gets events about all changes after the
// answer.
func (s *Service) notePorts() {
	s.comparing.Lock()
	defer s.comparing.Unlock()
	if s.ports == nil && s.Count() != 0 {
		s.ports = s.presentPorts()
	}
}

// presentPorts returns copies of the switch's ports by number.
func (s *Service) presentPorts() map[uint32]ofp.Port {
	ports := map[uint32]ofp.Port{}
	for _, p := range s.setup.Switch.Ports() {
		ports[p.No] = p.Port
	}
	return ports
}

func (s *Service) tellPorts(old, new map[uint32]ofp.Port) {
	for no, p := range new {
		old, existed := old[no]
		switch {
		case !existed:
			s.tellPort(ofp.PortAdded, p)
		case old.Name != p.Name:
			s.tellPort(ofp.PortDeleted, old)
			s.tellPort(ofp.PortAdded, p)
		case old != p:
			s.tellPort(ofp.PortModified, p)
		}
	}
	for no, old := range old {
		if _, exists := new[no]; !exists {
			s.tellPort(ofp.PortDeleted, old)
		}
	}
}

func (s *Service) tellPort(reason uint8, p ofp.Port) {
	for _, c := range s.connections() {
		c.mu.Lock()
		if c.accepts(c.async.PortStatus, reason) {
			c.post(ofp.AppendPortStatus(nil, c.version, reason, &p), eventChange)
		}
		c.mu.Unlock()
	}
}
