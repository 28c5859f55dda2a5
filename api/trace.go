package api

import (
	"net/http"
	"net/url"
)

// Trace is the way of a made-up frame through the tables.
type Trace struct {
	Flow  string      `json:"flow"` // as it was understood
	Steps []TraceStep `json:"steps"`
	// Megaflow is the match of the cache entry that the frame would make, Actions
	// what the workers would do with every frame that it covers.
	Megaflow string `json:"megaflow"`
	Actions  string `json:"actions"`
	// Drop is why nothing is sent, or, as loop, why not all.
	Drop string `json:"drop,omitempty"`
	// Then is how the frame goes on behind each ct action that names a table.
	Then []Trace `json:"then,omitempty"`
}

// Kinds of TraceStep.
const (
	StepTable  = "table"  // a lookup in Table: Rule, null if none matched
	StepAction = "action" // Action is executed
	StepNote   = "note"   // Note tells how the step before it came out
)

// TraceStep is one step of a Trace.
type TraceStep struct {
	Kind   string     `json:"kind"`
	Depth  int        `json:"depth"` // of resubmits
	Table  uint8      `json:"table"` // looked up, or of the action
	Rule   *TraceRule `json:"rule,omitempty"`
	Action string     `json:"action,omitempty"`
	Note   string     `json:"note,omitempty"`
}

// TraceRule is the flow that a lookup found.
type TraceRule struct {
	Priority int    `json:"priority"`
	Cookie   uint64 `json:"cookie"`
	Match    string `json:"match"`
	Actions  string `json:"actions"`
}

// Trace follows a made-up frame through the tables. ctNext is the ct_state that
// tracking finds, as in a match; "": that of a new connection.
func (c *Client) Trace(flow, ctNext string) (Trace, error) {
	var t Trace
	q := url.Values{"flow": {flow}}
	if ctNext != "" {
		q.Set("ct_next", ctNext)
	}
	return t, c.Do(http.MethodGet, "/v1/trace", q, nil, &t)
}
