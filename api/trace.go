// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// Trace is the path of a made-up frame through the tables.
type Trace struct {
	Flow  string      `json:"flow"` // the frame as the daemon understood it
	Steps []TraceStep `json:"steps"`
	// Megaflow is the match of the cache entry that the frame would create. Actions
	// are the datapath actions of this entry.
	Megaflow string `json:"megaflow"`
	Actions  string `json:"actions"`
	// Drop is the reason if nothing is sent. Some reasons, such as loop, mean that
	// only a part is sent.
	Drop string `json:"drop,omitempty"`
	// Then has a Trace for each ct action that names a table. It is the path of the
	// frame from that table on, after connection tracking.
	Then []Trace `json:"then,omitempty"`
}

// Values of TraceStep.Kind.
const (
	StepTable  = "table"  // lookup in Table; Rule is null if no flow matched
	StepAction = "action" // execution of Action
	StepNote   = "note"   // Note has the outcome of the previous step
)

// TraceStep is one step of a Trace.
type TraceStep struct {
	Kind   string     `json:"kind"`
	Depth  int        `json:"depth"` // nesting depth of resubmits
	Table  uint8      `json:"table"` // table of the lookup or of the action's flow
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
// tracking finds, in the syntax of a match; "" means a new connection.
func (c *Client) Trace(flow, ctNext string) (Trace, error) {
	var t Trace
	q := url.Values{"flow": {flow}}
	if ctNext != "" {
		q.Set("ct_next", ctNext)
	}
	return t, c.Do(http.MethodGet, "/v1/trace", q, nil, &t)
}
