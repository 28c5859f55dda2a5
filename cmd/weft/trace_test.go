// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"testing"

	"weft/api"
	"weft/cmd/exit"
)

func TestTraceText(t *testing.T) {
	socket := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("flow") != "in_port=1" {
			t.Errorf("asked %s", r.URL)
		}
		_ = json.NewEncoder(w).Encode(api.Trace{
			Flow: "in_port=1",
			Steps: []api.TraceStep{
				{Kind: api.StepTable, Rule: &api.TraceRule{Priority: 5, Cookie: 16, Actions: "resubmit(,2)"}},
				{Kind: api.StepAction, Action: "resubmit(,2)"},
				{Kind: api.StepTable, Depth: 1, Table: 2},
				{Kind: api.StepTable, Depth: 1, Table: 3, Rule: &api.TraceRule{Match: "ip", Actions: "drop"}},
				{Kind: api.StepNote, Note: "because"},
			},
			Megaflow: "in_port=1", Actions: "drop(flow-drop)",
		})
	})
	const want = `Flow: in_port=1

 0. any frame, priority 5, cookie 0x10
    resubmit(,2)
     2. no match
     3. ip, priority 0
        drop
     >> because

Megaflow: in_port=1
Datapath actions: drop(flow-drop)
`
	if out, errs, code := weft("", "--socket", socket, "trace", "in_port=1"); code != 0 || out != want {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
	out, _, _ := weft("", "--socket", socket, "trace", "--json", "in_port=1")
	var tr api.Trace
	if err := json.Unmarshal([]byte(out), &tr); err != nil || len(tr.Steps) != 5 {
		t.Errorf("%v\n%s", err, out)
	}
	if _, errs, code := weft("", "trace"); code != exit.Input || errs == "" {
		t.Errorf("no flow: %d %q", code, errs)
	}
}
