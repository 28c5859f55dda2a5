// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"sync"
	"sync/atomic"
	"time"

	"weft/api"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// monitorBacklog limits the events that wait for one client. Further events count as
// lost.
const monitorBacklog = 1 << 16

// Monitors has the clients that follow flows. No other lock is taken while Monitors.mu is held.
type Monitors struct {
	count    atomic.Int32 // number of monitors; while it is 0, changes of flows cost nothing extra
	mu       sync.Mutex
	monitors map[*Monitor]struct{}
}

// Monitor is an API client that follows flows, ports or connections.
type Monitor struct {
	bridge uint8 // bridge whose flows the client follows
	flows  *ofproto.Selector
	events chan Describe
	lost   atomic.Uint64
}

// Describe returns an event from a monitor's queue. The first reader's call formats the changed flow, so
// that the change itself does not wait for this.
type Describe func() *api.Event

// NewMonitor makes a monitor of the flows that filter selects.
func NewMonitor(filter openflow.FlowMod) *Monitor {
	return &Monitor{bridge: filter.Bridge, flows: ofproto.NewSelector(&filter), events: make(chan Describe, monitorBacklog)}
}

// Events returns the channel of the monitor's events, in the order in which they happened.
func (m *Monitor) Events() <-chan Describe { return m.events }

// TakeLost returns the number of events that this client has lost since the last call.
func (m *Monitor) TakeLost() uint64 { return m.lost.Swap(0) }

func (m *Monitors) Add(monitor *Monitor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.monitors == nil {
		m.monitors = map[*Monitor]struct{}{}
	}
	m.monitors[monitor] = struct{}{}
	m.count.Store(int32(len(m.monitors)))
}

func (m *Monitors) Remove(monitor *Monitor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.monitors, monitor)
	m.count.Store(int32(len(m.monitors)))
}

// Count returns the number of monitors.
func (m *Monitors) Count() int { return int(m.count.Load()) }

// TellFlow queues an event about flow r for each monitor that selects the flow. The event has a copy of r,
// whose match and actions never change. The first reader of the event calls describe for the copy. The
// caller holds Pipeline.mu.
func (m *Monitors) TellFlow(now time.Time, event string, r *ofproto.Rule, describe func(r *ofproto.Rule) api.Flow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.monitors) == 0 {
		return
	}
	var e Describe // made when the first monitor selects the flow
	match := r.Match.Unpack()
	for to := range m.monitors {
		if to.bridge != r.Bridge || !to.flows.Selects(r, &match) {
			continue
		}
		if e == nil {
			own := *r
			e = sync.OnceValue(func() *api.Event {
				flow := describe(&own)
				return &api.Event{Time: now, Kind: api.EventFlow, Event: event, Reason: own.Why.String(), Flow: &flow}
			})
		}
		to.post(e)
	}
}

// post queues an event for the client, or counts it as lost if the queue is full.
func (m *Monitor) post(e Describe) {
	select {
	case m.events <- e:
	default:
		m.lost.Add(1)
	}
}
