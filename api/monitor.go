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
	// Kind is flow, port, connection, or lost. A lost event counts the events that
	// the client missed because it did not read fast enough.
	Kind string `json:"kind"`
	// Event of a flow is initial (present at the start), added, modified, deleted or
	// expired. Event of a port is initial, added, deleted or its new state. Event of
	// a connection is new, update or destroy.
	Event string `json:"event,omitempty"`
	// Reason of a flow's end is one of ovs-ofctl's words: delete, idle, hard,
	// eviction, group_delete, meter_delete. Reason of a connection's update is state
	// or mark; of its end it is timeout, eviction, flush or successor.
	Reason string     `json:"reason,omitempty"`
	Flow   *Flow      `json:"flow,omitempty"` // the flow now, or at its end
	Port   *PortState `json:"port,omitempty"`
	// Connection is the connection at the time of the event, without its remaining
	// time. Time is the time at which the daemon received the event, about 10 ms
	// later if it keeps up.
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

// PortState is the part of a Port in events.
type PortState struct {
	Number uint32 `json:"number"`
	Name   string `json:"name"`
	Type   string `json:"type"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// MonitorRequest selects the kinds of events. Without any kind, Monitor sends flows
// and ports.
type MonitorRequest struct {
	Flows, Ports, Connections bool
	// Zone and Events select events of connections; empty means all. Zone is a
	// number. Events is a comma-separated list of new, update and destroy.
	Zone, Events string
	// Match selects flows, as the match of dump-flows does.
	Match string
	// Initial asks for the present objects first.
	Initial bool
}

// Monitor calls each with every event until each returns an error or ctx ends.
func (c *Client) Monitor(ctx context.Context, r MonitorRequest, ready func(), each func(*Event) error) error {
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
	return stream(ctx, c, "/v1/monitor", q, ready, each)
}
