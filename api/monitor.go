package api

import (
	"context"
	"net/url"
	"time"
)

// Event is a change of the flow tables or of a port.
type Event struct {
	Time time.Time `json:"time"`
	// Kind is flow, port, or lost: so many events were not told, because the
	// client did not read.
	Kind string `json:"kind"`
	// Event is, of a flow, initial (it was there already), added, modified,
	// deleted or expired; of a port, initial, added, deleted or its new state.
	Event string `json:"event,omitempty"`
	// Reason of a flow's end, in ovs-ofctl's words: delete, idle, hard, eviction,
	// group_delete, meter_delete.
	Reason string     `json:"reason,omitempty"`
	Flow   *Flow      `json:"flow,omitempty"` // as it is, or was at its end
	Port   *PortState `json:"port,omitempty"`
	Lost   uint64     `json:"lost,omitempty"`
}

// Kinds and events.
const (
	EventFlow = "flow"
	EventPort = "port"
	EventLost = "lost"

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

// MonitorRequest says what to follow; neither flows nor ports: both.
type MonitorRequest struct {
	Flows, Ports bool
	// Match selects flows, as that of dump-flows does.
	Match string
	// Initial asks for what is there already, first.
	Initial bool
}

// Monitor calls each with every event, until it returns an error or ctx ends.
func (c *Client) Monitor(ctx context.Context, r MonitorRequest, ready func(), each func(*Event) error) error {
	q := url.Values{}
	for name, on := range map[string]bool{"flows": r.Flows, "ports": r.Ports, "initial": r.Initial} {
		if on {
			q.Set(name, "true")
		}
	}
	if r.Match != "" {
		q.Set("match", r.Match)
	}
	return stream(ctx, c, "/v1/monitor", q, ready, each)
}
