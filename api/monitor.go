// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/url"
	"time"
)

// Event is a change of the flow tables, of a port or of a connection.
type Event struct {
	Time time.Time `json:"time"`
	// Kind is flow, port, connection or lost. A lost event has the number of events
	// that the client missed because it read too slowly.
	Kind string `json:"kind"`
	// Event says what happened. For a flow it is initial (present at the start), added,
	// modified, deleted or expired. For a port it is initial, added, deleted or the
	// port's new state. For a connection it is new, update or destroy.
	Event string `json:"event,omitempty"`
	// Reason says why a flow or connection changed. If a flow ends, it is one of ovs-ofctl's words:
	// delete, idle, hard, eviction, group_delete or meter_delete. If a connection changes, it is state
	// or mark. If a connection ends, it is timeout, eviction, flush, or successor (a new connection has
	// the same tuple).
	Reason string     `json:"reason,omitempty"`
	Flow   *Flow      `json:"flow,omitempty"` // state after the event; for a deleted flow, its last state
	Port   *PortState `json:"port,omitempty"`
	// Connection is the connection at the time of the event, without the time until its timeout. Time
	// is the time at which the daemon received the event, usually about 10 ms after it.
	Connection *Connection `json:"connection,omitempty"`
	Lost       uint64      `json:"lost,omitempty"`
}

// Values of Event.Kind and Event.Event.
const (
	EventFlow       = "flow"
	EventPort       = "port"
	EventConnection = "connection"
	EventLost       = "lost"

	EventInitial  = "initial"
	EventAdded    = "added"
	EventModified = "modified"
	EventDeleted  = "deleted"
	EventExpired  = "expired"
)

// PortState has the fields of a Port that are in an event. A change of one of them causes an event.
type PortState struct {
	Number uint32 `json:"number"`
	Name   string `json:"name"`
	Type   string `json:"type"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// MonitorRequest selects the kinds of events that Monitor reports. If no kind is
// selected, Monitor reports events of flows and ports.
type MonitorRequest struct {
	Flows, Ports, Connections bool
	// Zone and Events select events of connections; an empty value selects all. Zone is
	// a number. Events is a comma-separated list of the words new, update and destroy.
	Zone, Events string
	// Match selects flows, in the syntax of dump-flows.
	Match string
	// Initial makes the daemon first send the present flows and ports as events.
	Initial bool
}

// Monitor calls handle with each event that r selects, until handle returns an error or
// ctx ends. It calls ready when the daemon has accepted the request.
func (c *Client) Monitor(ctx context.Context, r MonitorRequest, ready func(), handle func(*Event) error) error {
	q := url.Values{}
	for name, on := range map[string]bool{"flows": r.Flows, "ports": r.Ports, "connections": r.Connections, "initial": r.Initial} {
		if on {
			q.Set(name, "true")
		}
	}
	for name, word := range map[string]string{"match": r.Match, "zone": r.Zone, "events": r.Events} {
		if word != "" {
			q.Set(name, word)
		}
	}
	return stream(ctx, c, "/v1/monitor", q, ready, handle)
}
