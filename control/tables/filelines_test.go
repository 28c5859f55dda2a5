// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strings"
	"testing"

	"weft/api"
	"weft/control/pipeline"
)

// The error of a refused line in a file names the line and the cause, and no line of
// the file takes effect.
func TestErrorsNameTheirLine(t *testing.T) {
	f := newRig(t)
	f.VXLANPorts(1)
	if err := f.tables().ModTable(api.ModTable{Table: 3, Settings: []string{"limit:1"}}); err != nil {
		t.Fatal(err)
	}
	const good = "# comment\ntable=3,ip,actions=drop\n\n" // three lines
	for _, c := range []struct{ op, line, want string }{
		{"add", "table=3,arp,actions=drop", "line 4: table 3: expected at most 1 flows in it"},
		{"add", "check_overlap,table=3,tcp,actions=drop", "line 4: check_overlap: expected no flow of priority 32768 in table 3"},
		{"add", "in_port=eth9,actions=drop", `line 4: "eth9": expected`},
		{"add", "actions=output:eth9", `line 4: "eth9": expected`},
		{"add", "actions=group:9", "line 4: group:9"},
		{"add", "actions=meter:9", "line 4: meter:9"},
		{"modify", "table=3,actions=group:9", "line 4: group:9"},
		{"add", "modify table=3,ip,actions=meter:9", "line 4: meter:9"},
		{"add", "add table=3,arp,actions=drop", "line 4: table 3: expected at most 1 flows in it"},
		{"replace", "table=3,arp,actions=drop", "line 4: table 3: expected at most 1 flows in it"},
		{"replace", "table=4,actions=group:9", "line 4: group:9"},
		{"replace", "delete ip", "line 4: "},
		{"add", strings.Repeat("x", 1<<20+1), `line 4: "line": expected at most`},
	} {
		_, err := f.tables().ChangeFlows(api.ChangeFlows{Op: c.op, Text: good + c.line + "\n", File: true})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %.60s: %v, want %s...", c.op, c.line, err, c.want)
		}
		if n := f.P.Counts().Flows; n != 0 {
			t.Fatalf("%s %.60s: %d flows", c.op, c.line, n)
		}
	}
	second := good + "flyy\n"
	if _, err := f.tables().DiffFlows(api.DiffFlows{First: good, Second: &second}, pipeline.ByName); err == nil || !strings.HasPrefix(err.Error(), `second file: line 4: "flyy"`) {
		t.Errorf("diff-flows: %v", err)
	}
	groups := "group_id=1,type=all,bucket=1\n\n"
	for line, want := range map[string]string{
		"group_id=1,type=all,bucket=1":           "line 3: ",
		"group_id=2,type=some,bucket=1":          "line 3: ",
		"modify group_id=5,type=all,bucket=1":    "line 3: ",
		"group_id=2,type=all,bucket=output:eth9": `line 3: "eth9"`,
		strings.Repeat("x", 1<<20+1):             `line 3: "line": expected at most`,
	} {
		_, err := f.tables().ChangeGroups(api.ChangeTable{Op: "add", Text: groups + line + "\n", File: true})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("group %.60s: %v, want %s...", line, err, want)
		}
	}
	meters := "meter=1,pktps,bands=type=drop,rate=1\n"
	for line, want := range map[string]string{
		"meter=1,pktps,bands=type=drop,rate=1": "line 2: ",
		"meter=2,bands=type=drop,rate=1":       `line 2: "meter": expected either kbps or pktps`,
		"meter=2,kbps,bands=type=drop,rate=x":  `line 2: "rate=x"`,
	} {
		_, err := f.tables().ChangeMeters(api.ChangeTable{Op: "add", Text: meters + line + "\n", File: true})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("meter %s: %v, want %s...", line, err, want)
		}
	}
	if g, _ := f.tables().ListGroups("", pipeline.ByName); len(g) != 0 {
		t.Errorf("groups of refused files: %+v", g)
	}
}

// A match field without its prerequisites is ignored, and a note in the answer says so.
func TestNotesOfFieldsLeftOut(t *testing.T) {
	f := newRig(t)
	const note = "ip_dst is ignored: it needs ip, "
	for _, c := range []struct {
		change api.ChangeFlows
		notes  int
		first  string
	}{
		{api.ChangeFlows{Op: "add", Text: "nw_dst=10.0.0.1,actions=drop"}, 1, note},
		{api.ChangeFlows{Op: "add", Text: "ip,nw_dst=10.0.0.1,actions=drop"}, 0, ""},
		{api.ChangeFlows{Op: "add", Text: "ip,actions=drop\nnw_dst=10.0.0.1,actions=drop\n", File: true}, 1, "line 2: " + note},
		{api.ChangeFlows{Op: "replace", Text: "ip,actions=drop\nnw_dst=10.0.0.1,actions=drop\n", File: true}, 1, "line 2: " + note},
		{api.ChangeFlows{Op: "modify", Text: "nw_dst=10.0.0.1,actions=drop"}, 1, note},
		{api.ChangeFlows{Op: "add", Text: strings.Repeat("nw_dst=10.0.0.1,actions=drop\n", 50), File: true}, maxNotes, "line 1: " + note},
	} {
		changed, err := f.tables().ChangeFlows(c.change)
		if err != nil || len(changed.Notes) != c.notes || c.notes > 0 && !strings.HasPrefix(changed.Notes[0], c.first) {
			t.Errorf("%s %.50q: %v %q, want %d, %s...", c.change.Op, c.change.Text, err, changed.Notes, c.notes, c.first)
		}
	}
	if changed, err := f.tables().DeleteFlows("nw_dst=10.0.0.1", false); err != nil || len(changed.Notes) != 1 {
		t.Errorf("delete: %v %q", err, changed.Notes)
	}
}
