// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
	"weft/openflow/ofproto"
)

// A monitor gets one abbreviated event, with the number of the request, for a change that
// its own connection makes, unless it asks for own changes in full.
func TestMonitorOfOwnChanges(t *testing.T) {
	const v = openflow.Version14
	const all = ofp.MonitorAdd | ofp.MonitorDelete | ofp.MonitorModify
	const added, deleted, abbreviated = 1, 2, 4
	type event struct {
		kind, length uint16
		xid          uint32 // xid in an abbreviated event
	}
	for name, c := range map[string]struct {
		flags uint16
		want  []event // of a flow of another connection, two flows of its own, and their end
	}{
		"abbreviated":  {all, []event{{added, 32, 0}, {abbreviated, 8, 71}, {abbreviated, 8, 72}, {abbreviated, 8, 73}}},
		"in full":      {all | ofp.MonitorOwn, []event{{added, 32, 0}, {added, 40, 0}, {added, 40, 0}, {deleted, 32, 0}, {deleted, 40, 0}, {deleted, 40, 0}}},
		"as ovs-ofctl": {all | ofp.MonitorOnlyOwn, []event{{added, 32, 0}, {added, 40, 0}, {added, 40, 0}, {deleted, 32, 0}, {deleted, 40, 0}, {deleted, 40, 0}}},
	} {
		r := newRig(t)
		r.sw.service = r.service
		p, other := r.connect(v), r.connect(v)
		p.write(ofptest.Message(v, 18, 5, uint16(16), uint16(0), uint32(0), uint32(1), ^uint32(0), ^uint32(0), c.flags, uint8(0xff), uint8(0),
			uint16(1), uint16(4), uint32(0)))
		p.barrier()
		other.write(flow(t, v, 70, openflow.Add, "actions=drop"))
		other.barrier()
		p.write(append(flow(t, v, 71, openflow.Add, "in_port=1,actions=drop"), flow(t, v, 72, openflow.Add, "in_port=2,actions=drop")...))
		p.write(flow(t, v, 73, openflow.Delete, ""))
		for i := 0; i < len(c.want); {
			m := p.read()
			if m[1] != 19 { // multipart reply
				t.Fatalf("%s: message % x", name, m)
			}
			for b := m[16:]; len(b) > 0; i++ {
				if i >= len(c.want) {
					t.Fatalf("%s: one more event % x", name, b)
				}
				got := event{length: binary.BigEndian.Uint16(b), kind: binary.BigEndian.Uint16(b[2:])}
				if got.kind == abbreviated {
					got.xid = binary.BigEndian.Uint32(b[4:])
				}
				if got != c.want[i] {
					t.Errorf("%s: event %d is %+v, want %+v", name, i, got, c.want[i])
				}
				b = b[got.length:]
			}
		}
	}
}

// A request for several monitors, one of which is refused, adds none of them.
func TestRefusedMonitorsLeaveNone(t *testing.T) {
	const v = openflow.Version14
	r := newRig(t)
	monitor := func(id uint32) []any {
		return []any{id, ^uint32(0), ^uint32(0), uint16(ofp.MonitorAdd), uint8(0xff), uint8(0), uint16(1), uint16(4), uint32(0)}
	}
	p := r.connect(v)
	p.write(ofptest.Message(v, 18, 5, slices.Concat([]any{uint16(16), uint16(0), uint32(0)}, monitor(1), monitor(2), monitor(2))...))
	if _, _, xid := errorOf(t, p.read()); xid != 5 {
		t.Fatalf("error of message %d", xid)
	}
	if n := r.service.Count(); n != 0 {
		t.Errorf("%d connections want events after the refused request", n)
	}
	for id := range uint32(2) { // neither id is in use
		p.write(ofptest.Message(v, 18, 6, slices.Concat([]any{uint16(16), uint16(0), uint32(0)}, monitor(id+1))...))
		if m := p.read(); m[1] != 19 {
			t.Errorf("monitor %d is answered by % x", id+1, m)
		}
	}
}

// A flow that is deleted while a new monitor gets the present flows is first shown and then
// reported as deleted.
func TestDeletedAfterInitial(t *testing.T) {
	const v = openflow.Version14
	r := newRig(t)
	p := r.connect(v)
	p.write(flow(t, v, 70, openflow.Add, "actions=drop"))
	p.barrier()
	c := r.service.connections()[0]
	r.sw.mu.Lock()
	r.sw.scanned = func(rules []ofproto.Rule) {
		for i := range rules {
			r.service.TellFlow(ofp.FlowDeleted, &rules[i])
		}
		// The event gets the time to overtake. The test needs no such wait to succeed.
		for end := time.Now().Add(100 * time.Millisecond); c.queued() > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
	r.sw.mu.Unlock()
	p.write(ofptest.Message(v, 18, 5, uint16(16), uint16(0), uint32(0), uint32(1), ^uint32(0), ^uint32(0),
		uint16(ofp.MonitorInitial|ofp.MonitorDelete), uint8(0xff), uint8(0), uint16(1), uint16(4), uint32(0)))
	var kinds []ofp.FlowEvent
	for len(kinds) < 2 {
		for b := p.read()[16:]; len(b) > 0; b = b[binary.BigEndian.Uint16(b):] {
			kinds = append(kinds, ofp.FlowEvent(binary.BigEndian.Uint16(b[2:])))
		}
	}
	if want := []ofp.FlowEvent{ofp.FlowInitial, ofp.FlowDeleted}; !slices.Equal(kinds, want) {
		t.Errorf("events %v, want %v", kinds, want)
	}
}

// A change of a flow encodes no event. It copies the rule once for all connections that want
// the event. A connection whose monitors select other flows gets no event.
func TestEventsAreEncodedLater(t *testing.T) {
	r := newRig(t)
	mod, err := openflow.ParseFlowMod("table=1,ip,actions=output:2", openflow.Add, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(table uint8) *Conn {
		c := newConn(r.service, discard{}, "tester", Write)
		c.version, c.ready, c.watching = openflow.Version13, true, true
		c.monitors[1] = &monitor{ofp.MonitorAdd, ofproto.NewSelector(&openflow.FlowMod{Table: table})}
		return c
	}
	first, second, other := conn(1), conn(openflow.TableAll), conn(2)
	rule := ofproto.Rule{Table: 1, Match: mod.Match, Actions: mod.Actions}
	change := flowChange{event: ofp.FlowAdded, rule: &rule, match: rule.Match.Unpack()}
	for _, c := range []*Conn{first, other} {
		c.tellFlow(&change)
	}
	copied := change.copied
	second.tellFlow(&change)
	if len(first.events) != 1 || len(second.events) != 1 || len(other.events) != 0 {
		t.Fatalf("%d, %d and %d events, want 1, 1 and 0", len(first.events), len(second.events), len(other.events))
	}
	if copied == nil || change.copied != copied {
		t.Error("the connections do not share one copy of the rule")
	}
	if e := &first.events[0]; e.message != nil || e.bytes <= 0 {
		t.Errorf("an event of %d bytes is encoded at once", e.bytes)
	}
	if m := first.events[0].encoded(); m[1] != 19 {
		t.Errorf("the event is % x", m)
	}
}

// The monitors of one peer, and those of all peers, are limited. The monitors of an ended
// connection no longer count.
func TestMonitorLimits(t *testing.T) {
	r := newRig(t)
	monitors := func(p *peer, first, n uint32) {
		for id := first; id < first+n; id++ {
			p.write(ofptest.Message(p.v, 18, 5, uint16(16), uint16(0), uint32(0), id, ^uint32(0), ^uint32(0), uint16(ofp.MonitorAdd), uint8(0xff), uint8(0),
				uint16(1), uint16(4), uint32(0)))
		}
	}
	failed := func(p *peer) (n int) {
		for _, m := range p.barrier() {
			if m[1] == ofp.TypeError {
				n++
			}
		}
		return n
	}
	var peers []*peer
	for range maxHolderMonitors / maxMonitors {
		p := r.connect(openflow.Version14)
		monitors(p, 0, maxMonitors)
		if n := failed(p); n != 0 {
			t.Fatalf("%d monitors within the limits are refused", n)
		}
		peers = append(peers, p)
	}
	p := r.connect(openflow.Version14)
	monitors(p, 0, 2)
	if n := failed(p); n != 2 {
		t.Errorf("%d monitors of a peer at its limit are refused, want 2", n)
	}
	peers[0].Close()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		monitors(p, 9, 1)
		if failed(p) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the monitors of an ended connection still count")
		}
	}
}
