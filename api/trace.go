// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
)

// Trace shows how the flow tables would process a frame. The frame is only described, not sent.
type Trace struct {
	Flow  string      `json:"flow"` // the frame as the daemon understood it
	Steps []TraceStep `json:"steps"`
	// Megaflow is the match of the cache entry that the frame would create. Actions are
	// the datapath actions of this entry.
	Megaflow string `json:"megaflow"`
	Actions  string `json:"actions"`
	// Drop is the drop reason. Some reasons, such as a loop, drop the frame only at a part of its
	// outputs.
	Drop string `json:"drop,omitempty"`
	// Then has the further look-ups of the frame: after connection tracking, or after an action that
	// pops a header and so reveals the next one.
	Then []Trace `json:"then,omitempty"`
	// Tracked is true for a look-up that connection tracking has caused.
	Tracked bool `json:"tracked,omitempty"`
}

// Values of TraceStep.Kind, which says what a step of a Trace is.
const (
	// look-up in the table TraceStep.Table; TraceStep.Rule is null if no flow has matched
	StepTable  = "table"
	StepAction = "action" // execution of TraceStep.Action
	StepNote   = "note"   // remark on the previous step, in TraceStep.Note
)

// TraceStep is one step of a Trace, such as a look-up in a table or an action.
type TraceStep struct {
	Kind   string     `json:"kind"`
	Bridge string     `json:"bridge,omitempty"` // bridge of the table, if it has a name
	Depth  int        `json:"depth"`            // nesting depth of resubmits
	Table  uint8      `json:"table"`            // table of the lookup, or of the flow whose action is executed
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

// Trace shows how the flow tables would process the frame that flowText describes. ctNext is the
// ct_state that connection tracking would set, in match syntax; "" means a new connection.
func (c *Client) Trace(flowText, ctNext string) (Trace, error) {
	var t Trace
	q := url.Values{"flow": {flowText}}
	if ctNext != "" {
		q.Set("ct_next", ctNext)
	}
	return t, c.Do(http.MethodGet, "/v1/trace", q, nil, &t)
}
