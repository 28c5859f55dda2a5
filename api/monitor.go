package api

import (
	"context"
	"net/url"
	"time"
)

// Event is a change of the flow tables, of a port or of a connection.
type Event struct {
	Time time.Time `json:"time"`
	// Kind is flow, port, connection, or lost: so many events were not told, because the
	// client did not read.
	Kind string `json:"kind"`
	// Event is, of a flow, initial (it was there already), added, modified,
	// deleted or expired; of a port, initial, added, deleted or its new state;
	// of a connection, new, update or destroy.
	Event string `json:"event,omitempty"`
	// Reason of a flow's end, in ovs-ofctl's words: delete, idle, hard, eviction,
	// group_delete, meter_delete; of a connection's update state or mark, of its
	// end timeout, eviction, flush or successor.
	Reason string     `json:"reason,omitempty"`
	Flow   *Flow      `json:"flow,omitempty"` // as it is, or was at its end
	Port   *PortState `json:"port,omitempty"`
	// Connection as it was then, but for the time that was left to it. Time is when
	// the daemon was told, some 10 ms later if it keeps up.
	Connection *Connection `json:"connection,omitempty"`
	Lost       uint64      `json:"lost,omitempty"`
}

// Kinds and events.
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

// PortState is the part of a Port that events tell of.
type PortState struct {
	Number uint32 `json:"number"`
	Name   string `json:"name"`
	Type   string `json:"type"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// MonitorRequest says what to follow; none of them: flows and ports.
type MonitorRequest struct {
	Flows, Ports, Connections bool
	// Zone, a number, and Events, of new, update and destroy with commas between,
	// select events of connections; empty: all.
	Zone, Events string
	// Match selects flows, as that of dump-flows does.
	Match string
	// Initial asks for what is there already, first.
	Initial bool
}

// Monitor calls each with every event, until it returns an error or ctx ends.
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
