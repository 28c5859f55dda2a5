// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"weft/api"
	"weft/cmd/exit"
)

// Every verb refuses wrong options and arguments before it sends a request. The error
// is one line that names them.
func TestWrongOptions(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing", "file")
	for _, c := range []struct{ line, word string }{
		// verbs for flows, groups, meters and tables
		{"add-flows", "FILE|-"},
		{"add-flows " + missing, missing},
		{"replace-flows " + missing, missing},
		{"mod-flows", "FLOW|-"},
		{"mod-flows --strit a", "--strit"},
		{"del-flows a b", "b is one word too many"},
		{"dump-flows a b", "b is one word too many"},
		{"dump-aggregate a b", "b is one word too many"},
		{"dump-megaflows a", "a is one word too many"},
		{"diff-flows", "FILE|- [FILE]"},
		{"diff-flows a b c", "c is one word too many"},
		{"add-group", "GROUP"},
		{"add-groups " + missing, missing},
		{"mod-group", "GROUP"},
		{"del-groups a b", "b is one word too many"},
		{"dump-groups a b", "b is one word too many"},
		{"dump-group-stats a b", "b is one word too many"},
		{"add-meter", "METER"},
		{"mod-meter", "METER"},
		{"del-meters a b", "b is one word too many"},
		{"dump-meters a b", "b is one word too many"},
		{"meter-stats a b", "b is one word too many"},
		{"mod-table 3", "evict|noevict|limit:N"},
		{"mod-table x evict", "x: expected the number of a table"},
		{"mod-table -- -1 evict", "-1: expected the number of a table"},
		{"dump-tables x", "x is one word too many"},
		{"show limits a b", "b is one word too many"},
		{"fdb-show x", "x is one word too many"},
		{"fdb-flush p1 p2", "p2 is one word too many"},
		// verbs for tracked connections
		{"dump-conntrack a b c d e f g", "g is one word too many"},
		{"flush-conntrack a b c d e f g", "g is one word too many"},
		{"ct-get-maxconns invalid", "invalid is one word too many"},
		{"ct-get-nconns 3", "3 is one word too many"},
		{"ct-set-maxconns", "N"},
		{"ct-set-maxconns many", "many: expected a number"},
		{"ct-set-limits default=x", "default=x: expected default=N"},
		{"ct-set-limits zone=1", "zone=1: expected zone=N,limit=N"},
		{"ct-set-limits zone=x,limit=1", "zone x: expected a number from 0 to 65535"},
		{"ct-del-limits 7", "7: expected zone=N[,N...]"},
		{"ct-del-limits default 7", "7: expected zone=N[,N...]"},
		{"dump-conntrack-exp zone=1,2", "expected one zone"},
		{"ct-del-limits zone=70000", "70000: expected a number from 0 to 65535"},
		{"ct-get-limits 7", "7: expected zone=N[,N...]"},
		{"ct-timeout zone=x", "x: expected"},
		{"ct-timeout soon", "soon: expected"},
		{"ct-timeout tcp_syn_sent=x", "tcp_syn_sent=x: expected NAME=SECONDS"},
		// verbs that show what the switch does
		{"trace", "FLOW"},
		{"trace --live -c -1", "-c -1: expected a number of frames"},
		{"trace --live -c x", "-c, --count: x: expected a whole number"},
		{"monitor --ports ip", "ip selects flows"},
		{"monitor --connections ip", "ip selects flows"},
		{"monitor --zone 5", "--connections"},
		{"monitor --events new", "--connections"},
		{"monitor a b", "b is one word too many"},
		{"capture", "PORT|drops"},
		{"capture p -c -1", "-c and -s"},
		{"capture p -s -1", "-c and -s"},
		{"capture p --port q", "--port: expected with drops"},
		{"capture p -c x", "-c, --count: x: expected a whole number"},
		{"capture p -s x", "-s, --snap: x: expected a whole number"},
		{"capture drops -w " + missing, missing},
		{"top --interval 1us", "--interval 1µs"},
		{"top --interval x", "--interval: x: expected a time with its unit, as in 500ms"},
		{"show x", "x is one word too many"},
		{"version x", "x is one word too many"},
		// verbs of bench
		{"bench frob", "frob: no such verb; expected one of"},
		{"bench server x", "x is one word too many"},
		{"bench server -p 9 --listen :9", "-p and --listen"},
		{"bench server -p 65536", "-p, --port: 65536: expected a whole number from 0 to 65535"},
		{"bench server --listen :65536", ":65536: expected a port of at most 65535"},
		{"bench server --raw nosuchdev9", "nosuchdev9"},
		{"bench server --listen nonsense", "nonsense"},
		{"bench client", "HOST"},
		{"bench client h -u --raw eth0", "-u and --raw"},
		{"bench client h --rr --crr", "--rr and --crr"},
		{"bench client h -l 9 --size 64", "-l and --size"},
		{"bench client h -i -1", "-i: -1"},
		{"bench client h -t x", "-t, --time: x: expected a number"},
		{"bench client h -p 65536", "-p, --port: 65536: expected a whole number from 0 to 65535"},
		{"bench client h:65536", "h:65536: expected a port of at most 65535"},
		{"bench client h -b x", "-b: "},
		{"bench client h -k -1", "-k, --count: -1: expected a whole number from 0 up"},
		{"bench client h -l x", "-l: "},
		{"bench client h -w x", "-w: "},
		{"bench client h -u --size big", "--size: "},
		{"bench client h --raw nosuchdev9", "nosuchdev9"},
		// options that all verbs have
		{"--socket vsock:1 show", "vsock:1"},
		{"--nosuch show", "--nosuch"},
		{"--json=x show", "--json: x: expected true or false"},
	} {
		out, errs, code := weft("", strings.Fields(c.line)...)
		if code != exit.Input && !strings.HasPrefix(c.line, "diff-flows") && !strings.Contains(c.line, "-w "+missing) {
			t.Errorf("weft %s: exit code %d", c.line, code)
		}
		if !strings.Contains(errs, c.word) || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "weft: ") || out != "" {
			t.Errorf("weft %s: %q does not name %q in one line; printed %q", c.line, errs, c.word, out)
		}
		for _, raw := range []string{"strconv", "time: invalid", "dial tcp: address", "listen tcp: address"} {
			if strings.Contains(errs, raw) {
				t.Errorf("weft %s: %q has an error of Go's library", c.line, errs)
			}
		}
	}
}

// An error about a line of a file names the file and the line.
func TestErrorsNameTheFile(t *testing.T) {
	for name, want := range map[string]string{"-": "standard input: line 3: x", "f": "f: line 3: x"} {
		if err := ofFile(name, refusedLine("line 3: x")); err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
	if err := ofFile("f", refusedLine("op x")); err.Error() != "op x" {
		t.Errorf("%q", err)
	}
}

func refusedLine(message string) error { return &api.Refused{Message: message, Input: true} }
