// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// Trace is the path of a hypothetical frame through the tables.
type Trace struct {
	Flow  string      `json:"flow"` // the frame as the daemon understood it
	Steps []TraceStep `json:"steps"`
	// Megaflow is the match of the cache entry that the frame would create, and
	// Actions are this entry's datapath actions.
	Megaflow string `json:"megaflow"`
	Actions  string `json:"actions"`
	// Drop is the drop reason if the frame is not sent. Some reasons, such as loop,
	// mean that the frame is sent to only some of its outputs.
	Drop string `json:"drop,omitempty"`
	// Then has one Trace for each ct action that names a table: the frame's path
	// after connection tracking.
	Then []Trace `json:"then,omitempty"`
}

// Values of TraceStep.Kind.
const (
	StepTable  = "table"  // look-up in the table TraceStep.Table; TraceStep.Rule is null if no flow matched
	StepAction = "action" // execution of Action
	StepNote   = "note"   // remark on the previous step, in TraceStep.Note
)

// TraceStep is one step of a Trace.
type TraceStep struct {
	Kind   string     `json:"kind"`
	Depth  int        `json:"depth"` // nesting depth of resubmits
	Table  uint8      `json:"table"` // table of the lookup, or of the flow whose action is executed
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

// Trace follows a hypothetical frame through the tables. ctNext is the ct_state that
// connection tracking returns, in match syntax; "" means a new connection.
func (c *Client) Trace(flow, ctNext string) (Trace, error) {
	var t Trace
	q := url.Values{"flow": {flow}}
	if ctNext != "" {
		q.Set("ct_next", ctNext)
	}
	return t, c.Do(http.MethodGet, "/v1/trace", q, nil, &t)
}
