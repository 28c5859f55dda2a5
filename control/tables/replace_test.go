// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"weft/api"
	"weft/control/pipeline"
	"weft/control/workers/workertest"
)

func (f *rig) replace(flows ...string) int {
	f.T.Helper()
	n, err := f.tables().ChangeFlows(api.ChangeFlows{Op: "replace", Text: strings.Join(flows, "\n"), File: true})
	if err != nil {
		f.T.Fatal(err)
	}
	return n.Flows
}

func (f *rig) diff(first string, second *string) []string {
	f.T.Helper()
	d, err := f.tables().DiffFlows(api.DiffFlows{First: first, Second: second}, pipeline.ByName)
	if err != nil {
		f.T.Fatal(err)
	}
	return d.Lines
}

// Replacing all flows keeps the counts of unchanged flows.
func TestReplaceFlows(t *testing.T) {
	f := newRig(t)
	f.Add("udp,tp_dst=1,actions=drop", "udp,tp_dst=2,actions=drop", "udp,tp_dst=3,actions=drop", "udp,tp_dst=4,actions=drop")
	for port := range uint16(5) {
		f.Worker().Frame(workertest.UDPKey(1, 1, 2, port), 100)
	}
	f.Settle()
	text := []string{
		"udp,tp_dst=1,actions=drop",
		"udp,tp_dst=2,cookie=7,actions=resubmit(,1)",
		"udp,tp_dst=3,idle_timeout=60,actions=drop",
		"table=1,actions=drop",
	}
	want := []string{
		"-udp,tp_dst=2 actions=drop", "+udp,tp_dst=2 cookie=0x7 actions=resubmit(,1)",
		"-udp,tp_dst=3 actions=drop", "+udp,tp_dst=3 idle_timeout=60 actions=drop",
		"-udp,tp_dst=4 actions=drop", "+table=1  actions=drop",
	}
	if got := f.diff(strings.Join(text, "\n"), nil); !slices.Equal(got, want) {
		t.Errorf("diff %q, want %q", got, want)
	}
	if n := f.replace(text...); n != 5 { // 5 changes, because a flow whose timeout differs is removed and added
		t.Errorf("%d changes", n)
	}
	f.Want("udp,tp_dst=1", "1/100")
	f.Want("udp,tp_dst=2", "1/100") // changed in place
	f.Want("udp,tp_dst=3", "0/0")   // a new flow
	f.Want("", "0/0")
	if got := f.diff(strings.Join(text, "\n"), nil); len(got) != 0 {
		t.Errorf("after replacing: %q", got)
	}
	if n := f.replace(text...); n != 0 {
		t.Errorf("replacing again: %d changes, want 0", n)
	}
	// Replacing all flows by their own dump changes no flow.
	flows, err := f.tables().DumpFlows("", pipeline.ByName)
	if err != nil || len(flows) != 4 {
		t.Fatalf("%+v, %v", flows, err)
	}
	var lines []string
	for _, fl := range flows {
		lines = append(lines, fl.Line)
	}
	if n := f.replace(lines...); n != 0 {
		t.Errorf("replacing by the dump: %d changes, want 0", n)
	}
	if n := f.replace(); n != 4 || f.P.Counts().Flows != 0 {
		t.Errorf("replacing by an empty file: %d changes, %d flows left", n, f.P.Counts().Flows)
	}
}

// If the file has a wrong line or a command, no flow changes.
func TestReplaceIsWholeOrNothing(t *testing.T) {
	f := newRig(t)
	f.Add("udp,actions=drop")
	for _, c := range []struct{ text, word string }{
		{"ip,actions=drop\n\narp,actions=frob", "line 3"},
		{"ip,actions=drop\ndelete udp", "udp"},
		{"ip,actions=drop\nmodify udp,actions=drop", "without a command"},
	} {
		if _, err := f.tables().ChangeFlows(api.ChangeFlows{Op: "replace", Text: c.text, File: true}); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%q: %v, want %q", c.text, err, c.word)
		}
		if _, err := f.tables().DiffFlows(api.DiffFlows{First: "", Second: &c.text}, pipeline.ByName); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("diff with %q: %v, want %q", c.text, err, c.word)
		}
	}
	f.Want("udp", "0/0")
	if n := f.P.Counts().Flows; n != 1 {
		t.Errorf("%d flows", n)
	}
}

// For random files, replacing the flows gives the same tables as applying the printed
// diff by hand.
func TestReplaceAgainstDiff(t *testing.T) {
	f := newRig(t)
	rng := rand.New(rand.NewSource(1))
	for range 30 {
		file := func() string {
			var lines []string
			for range rng.Intn(12) {
				lines = append(lines, fmt.Sprintf("table=%d,priority=%d,cookie=%d,hard_timeout=%d,udp,tp_dst=%d,actions=load:%d->NXM_NX_REG0[]",
					rng.Intn(2), 1+rng.Intn(2), rng.Intn(2), 100*rng.Intn(2), rng.Intn(3), rng.Intn(2)))
			}
			return strings.Join(lines, "\n")
		}
		a, b := file(), file()
		f.replace(a)
		want := f.diff(a, &b)
		if got := f.diff(b, nil); !slices.Equal(got, want) {
			t.Fatalf("%q to %q:\nfrom the tables %q\nfrom the file %q", a, b, got, want)
		}
		var changes []string
		for _, line := range want {
			match, _, _ := strings.Cut(line[1:], "actions=")
			if line[0] == '+' {
				changes = append(changes, "add "+line[1:])
			} else {
				changes = append(changes, "delete_strict "+strings.NewReplacer("hard_timeout=100", "", "cookie=0x1", "").Replace(match))
			}
		}
		f.Add(changes...)
		if got := f.diff(b, nil); len(got) != 0 {
			t.Fatalf("%q to %q by %q leaves %q", a, b, changes, got)
		}
		f.replace(a)
		f.replace(b)
		if got := f.diff(b, nil); len(got) != 0 {
			t.Fatalf("%q replaced by %q leaves %q", a, b, got)
		}
	}
}

// An error on line 70,000 of 100,000 changes no flow and names the line.
func TestErrorDeepInAFile(t *testing.T) {
	f := newRig(t)
	f.Add("priority=9,udp,actions=drop")
	before := dumpWithout(t, f.tables())
	for _, c := range []struct{ line, word string }{
		{"table=1,ip,actions=flyy", "line 70000: \"flyy\""},
		{"check_overlap,table=1,priority=32768,ip,nw_dst=10.0.0.0/8,actions=drop", "line 70000: check_overlap"},
	} {
		var text strings.Builder
		for i := range 100_000 {
			if i == 69_999 {
				text.WriteString(c.line + "\n")
				continue
			}
			fmt.Fprintf(&text, "table=1,ip,nw_dst=10.%d.%d.%d,actions=drop\n", i>>16, i>>8&255, i&255)
		}
		_, err := f.tables().ChangeFlows(api.ChangeFlows{Op: "add", Text: text.String(), File: true})
		if err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("error %v, want %s", err, c.word)
		}
		if n := f.P.Counts().Flows; n != 1 || dumpWithout(t, f.tables()) != before {
			t.Errorf("after %q: %d flows:\n%s", c.line, n, dumpWithout(t, f.tables()))
		}
	}
	saved, err := f.Disk.Load()
	if err != nil || len(saved.Flows) != 1 {
		t.Errorf("%d flows saved, %v; want 1", len(saved.Flows), err)
	}
}

// dumpWithout returns the dump of all flows, without ages and durations.
func dumpWithout(t *testing.T, ts *Tables) string {
	t.Helper()
	flows, err := ts.DumpFlows("", pipeline.ByName)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range flows {
		fmt.Fprintln(&b, f.Table, f.Priority, f.Cookie, f.Match, f.Actions, f.Packets)
	}
	return b.String()
}
