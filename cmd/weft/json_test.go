// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"weft/cmd/exit"
	"weft/cmd/manpage"
)

// jsonLines has the arguments with which the test runs each verb.
var jsonLines = map[string]string{
	"add-port": "p type=tap", "del-port": "p", "dump-ports": "", "show": "", "show limits": "p", "show routes": "p", "shutdown": "", "version": "", "log": "", "log level": "debug", "log format": "json",
	"add-flow": "actions=drop", "add-flows": "-", "replace-flows": "-", "mod-flows": "actions=drop", "del-flows": "",
	"diff-flows": "-", "dump-flows": "", "dump-aggregate": "", "dump-megaflows": "", "packet-out": "packet=00,actions=drop",
	"add-group": "group_id=1", "add-groups": "-", "mod-group": "group_id=1", "del-groups": "", "dump-groups": "", "dump-group-stats": "",
	"add-meter": "meter=1", "add-meters": "-", "mod-port": "p vni=1", "mod-meter": "meter=1", "del-meters": "", "dump-meters": "", "meter-stats": "", "queue-stats": "",
	"mod-table": "all evict", "dump-tables": "", "add-tlv-map": "{class=1,type=2,len=4}->tun_metadata0", "del-tlv-map": "", "dump-tlv-map": "", "fdb-show": "", "fdb-flush": "",
	"dump-conntrack": "", "dump-conntrack-exp": "zone=1", "flush-conntrack": "", "ct-stats-show": "", "ct-timeout": "", "ct-get-nconns": "", "ct-get-maxconns": "",
	"ct-set-maxconns": "5", "ct-get-tcp-seq-chk": "", "ct-enable-tcp-seq-chk": "", "ct-disable-tcp-seq-chk": "",
	"ct-set-limits": "default=5", "ct-del-limits": "zone=1", "ct-get-limits": "",
	"trace": "in_port=1", "trace --live": "-c 1", "capture": "p -c 1", "monitor": "", "top": "--once --interval 10ms",
	"add-br": "sw1", "del-br": "sw1", "list-br": "", "br-exists": "sw0", "port-to-br": "p",
	"set-controller": "sw0 tcp:127.0.0.1:1", "get-controller": "sw0", "del-controller": "sw0",
	"set-fail-mode": "sw0 standalone", "get-fail-mode": "sw0", "del-fail-mode": "sw0",
}

// notPrinting lists the verbs that the test does not run: help topics, verbs without JSON, and verbs that
// need a peer. The tests of e2e check the JSON of "bench client".
var notPrinting = []string{"completion", "bench server", "bench client", "help", "man", "ports", "flows"}

// answers has the fake daemon's responses to GET requests, by path. The fake daemon answers other requests
// with {}.
var answers = map[string]string{
	"/v1/ports": `[{"name":"p","number":1}]`, "/v1/flows": `[{"line":" table=0 actions=drop"}]`,
	"/v1/megaflows": `[{"actions":"drop"}]`, "/v1/groups": `[{"group_id":1}]`, "/v1/meters": `[{"meter":1}]`, "/v1/queues": `[{"queue":1}]`,
	"/v1/bridges": `[{"name":"sw0","first":true},{"name":"br-int"}]`, "/v1/tables": `[{"table":1}]`, "/v1/tlv-map": `{"max_fields":64}`, "/v1/macs": `[{"port":"p"}]`, "/v1/conntrack": `{"protocol":"tcp","line":"tcp,x"}`, "/v1/hottest": `[]`,
	"/v1/limits":                 `[{"name":"masks","holder_kind":"port","holder":"p","used":3,"limit":9}]`,
	"/v1/routes":                 `[{"port":"p","remote":"10.0.0.2","state":"reachable"}]`,
	"/v1/conntrack/expectations": `[{"protocol":"tcp","line":"tcp,x"}]`,
	"/v1/conntrack/settings":     `{"timeouts_s":{"tcp_established":5}}`,
	"/v1/trace/live":             `{"kind":"trace","time":"2020-01-01T00:00:00Z"}`, "/v1/capture": `{"kind":"in","data":"AQID","time":"2020-01-01T00:00:00Z"}`,
	"/v1/monitor": `{"kind":"lost","lost":5,"time":"2020-01-01T00:00:00Z"}`,
}

// With --json, every verb prints JSON: one value, or several if the output is a stream such as a capture.
func TestEveryVerbHasJSON(t *testing.T) {
	fakeDaemon(t)
	leaves := map[string]bool{"trace --live": true, "show": true, "log": true}
	for _, verb := range leavesOf((&command{}).root()) {
		if _, ok := verb.Annotations[manpage.SameAs]; !ok { // a noun's verb is the same as one that is in the list
			leaves[pathOf(verb)] = true
		}
	}
	for verb := range leaves {
		if _, ok := jsonLines[verb]; !ok && !slices.Contains(notPrinting, verb) && !centralJSON(verb) {
			t.Errorf("weft %s is not among the verbs tested here", verb)
		}
	}
	for _, verb := range slices.Sorted(maps.Keys(jsonLines)) {
		if !leaves[verb] {
			t.Errorf("weft %s: no such verb", verb)
		}
		line := append(strings.Fields(verb), strings.Fields(jsonLines[verb])...)
		text, errs, code := weft("actions=drop", line...)
		if code != 0 && code != exitDiffer {
			t.Errorf("weft %s: %d %s", strings.Join(line, " "), code, errs)
		}
		for _, args := range [][]string{append(slices.Clone(line), "--json"), append([]string{"--json"}, line...)} {
			out, errs, code := weft("actions=drop", args...)
			if n, err := values(out); err != nil || text != "" && n == 0 || code != 0 && code != exitDiffer {
				t.Errorf("weft %s: %d %s, %d values, %v:\n%s\nwithout --json:\n%s", strings.Join(args, " "), code, errs, n, err, out, text)
			}
		}
	}
	if _, errs, code := weft("", "capture", "p", "-w", filepath.Join(t.TempDir(), "x"), "--json"); code != exit.Input || !strings.Contains(errs, "-w") {
		t.Errorf("capture -w --json: %d %s", code, errs)
	}
}

// fakeDaemon starts an HTTP server that responds with "answers", and makes weft take it for the daemon.
func fakeDaemon(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok || r.Method != http.MethodGet {
			answer = "{}"
			if r.URL.Path == "/v1/flows/diff" {
				answer = `{"lines":["-actions=drop"]}`
			}
		}
		_, _ = io.WriteString(w, answer)
	}))
}

// leavesOf returns the verbs below cmd, at any depth, that have no sub-verbs.
func leavesOf(cmd *cobra.Command) (list []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.HasSubCommands() {
			list = append(list, leavesOf(sub)...)
		} else {
			list = append(list, sub)
		}
	}
	return list
}

// pathOf returns the words that call a verb, without the program's name: "flow add".
func pathOf(verb *cobra.Command) string {
	return strings.TrimPrefix(verb.CommandPath(), verb.Root().Name()+" ")
}

func values(text string) (n int, err error) {
	for dec := json.NewDecoder(strings.NewReader(text)); ; n++ {
		var v any
		if err := dec.Decode(&v); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// If a command line has a bridge's name as ovs-ofctl expects it, but the switch has no such bridge, weft
// fails. The error advises the user to leave out the name.
func TestBridgesAreLeftOut(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":"\"br0\": expected something else"}`)
	}))
	file := filepath.Join(t.TempDir(), "flows")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"add-flow br0 in_port=1,actions=drop", "add-flows br0 " + file, "dump-flows br0", "dump-flows br0 ip", "--strict del-flows br0 ip", "del-flows br0",
		"mod-flows br0 actions=drop", "show br0", "dump-groups br0", "add-group br0 group_id=1,type=all", "packet-out br0 in_port=1,packet=00,actions=2",
		"dump-tables br0", "trace br0 in_port=1", "fdb-show br0", "monitor br0 ip", "diff-flows br0 a b", "add-flows br0",
	} {
		out, errs, code := weft("", strings.Fields(line)...)
		if code == 0 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "if br0 is a bridge, leave it out") {
			t.Errorf("weft %s: %d %s%s", line, code, out, errs)
		}
	}
	for _, line := range []string{"add-flow a=1 b", "capture p q", "add-port br0 x"} {
		if _, errs, _ := weft("", strings.Fields(line)...); strings.Contains(errs, "bridge") {
			t.Errorf("weft %s: %s", line, errs)
		}
	}
}

// An error about a line of a file does not take the name of the file for the name of a bridge.
func TestFilesAreNoBridges(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":"line 3: \"flows.txt\": expected something else"}`)
	}))
	t.Chdir(t.TempDir())
	if err := os.WriteFile("flows.txt", []byte("\n\nflows.txt\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"add-flows", "replace-flows", "diff-flows", "add-groups"} {
		if _, errs, code := weft("", verb, "flows.txt"); code == 0 || !strings.Contains(errs, "flows.txt: line 3: ") || strings.Contains(errs, "bridge") {
			t.Errorf("weft %s flows.txt: %d %s", verb, code, errs)
		}
	}
	for _, line := range []string{"add-flows br0", "add-flows br0 flows.txt"} {
		if _, errs, _ := weft("", strings.Fields(line)...); !strings.Contains(errs, "if br0 is a bridge, leave it out") {
			t.Errorf("weft %s: %s", line, errs)
		}
	}
}

// --no-names, before or after the verb, makes the daemon show ports by number.
func TestNoNames(t *testing.T) {
	var query string
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.RawQuery
		switch r.URL.Path {
		case "/v1/macs":
			_, _ = io.WriteString(w, `[{"port":"vm1","port_number":7}]`)
		case "/v1/trace", "/v1/flows/diff":
			_, _ = io.WriteString(w, "{}")
		default:
			_, _ = io.WriteString(w, "[]")
		}
	}))
	for _, line := range []string{"dump-flows", "dump-groups", "dump-megaflows", "trace in_port=1", "diff-flows -", "fdb-show"} {
		for _, args := range []string{"--no-names " + line, line + " --no-names", line, line + " --names"} {
			out, errs, code := weft("", strings.Fields(args)...)
			if code != 0 || strings.Contains(query, "names=false") != strings.Contains(args, "--no-names") {
				t.Errorf("weft %s: %d %s, asked %s", args, code, errs, query)
			}
			if line == "fdb-show" && strings.Contains(out, "vm1") == strings.Contains(args, "--no-names") {
				t.Errorf("weft %s: %s", args, out)
			}
		}
	}
	for line, word := range map[string]string{"dump-flows --names --no-names": "no-names", "trace --live --no-names": "--no-names", "show --no-names": "--no-names"} {
		if _, errs, code := weft("", strings.Fields(line)...); code != exit.Input || !strings.Contains(errs, word) {
			t.Errorf("weft %s: %d %s", line, code, errs)
		}
	}
}

// The option -O accepts any version of OpenFlow and has no effect.
func TestProtocols(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[]") }))
	for _, line := range []string{"-O OpenFlow13 dump-flows", "-OOpenFlow15 dump-groups", "dump-flows -O OpenFlow10,OpenFlow14", "--protocols=OpenFlow11 --no-names dump-flows ip"} {
		if out, errs, code := weft("", strings.Fields(line)...); code != 0 || errs != "" {
			t.Errorf("weft %s: %d %s%s", line, code, out, errs)
		}
	}
	for line, word := range map[string]string{"-O OpenFlow99 dump-flows": "OpenFlow99", "dump-flows -O 13": "13", "-O OpenFlow13 version": "O"} {
		if _, errs, code := weft("", strings.Fields(line)...); code != exit.Input || !strings.Contains(errs, word) || strings.Count(errs, "\n") != 1 {
			t.Errorf("weft %s: %d %s", line, code, errs)
		}
	}
}

// If the first argument is a bridge's name, as ovs-ofctl expects it, the verb applies to that bridge. The
// argument has no other effect.
func TestOwnNameIsLeftOut(t *testing.T) {
	var asked, bridges []string
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/bridges" {
			_, _ = io.WriteString(w, `[{"name":"br0","first":true}]`)
			return
		}
		text, _ := io.ReadAll(r.Body)
		q := r.URL.Query()
		bridge := q.Get("bridge")
		q.Del("bridge")
		bridges = append(bridges, bridge)
		asked = append(asked, r.Method+" "+r.URL.Path+" "+q.Encode()+string(text))
		_, _ = io.WriteString(w, map[bool]string{true: "[]", false: "{}"}[r.Method == "GET"])
	}))
	for with, without := range map[string]string{
		"dump-flows br0": "dump-flows", "dump-flows br0 ip": "dump-flows ip", "add-flow br0 ip,actions=drop": "add-flow ip,actions=drop",
		"--strict del-flows br0 ip": "--strict del-flows ip", "dump-ports br0 p1": "dump-ports p1", "-O OpenFlow13 dump-groups br0": "dump-groups",
	} {
		var requests [2][]string
		for i, line := range []string{with, without} {
			asked, bridges = nil, nil
			if _, errs, code := weft("", strings.Fields(line)...); code != 0 {
				t.Errorf("weft %s: %d %s", line, code, errs)
			}
			if want := []string{"br0", ""}[i]; slices.ContainsFunc(bridges, func(b string) bool { return b != want }) {
				t.Errorf("weft %s asks for the bridges %q", line, bridges)
			}
			requests[i] = asked
		}
		if !slices.Equal(requests[0], requests[1]) {
			t.Errorf("weft %s asks %q, weft %s %q", with, requests[0], without, requests[1])
		}
	}
	for line, want := range map[string]string{
		"mod-port br0 tag=5": "/v1/ports/br0", "mod-port br0 up": "/v1/ports/br0", "mod-port br0 tag=5 up": "/v1/ports/br0",
		"mod-port br0 br0 tag=5": "/v1/ports/br0", "mod-port br0 p1 down": "/v1/ports/p1",
	} {
		asked = nil
		_, errs, code := weft("", strings.Fields(line)...)
		if code != 0 || len(asked) != 1 || !strings.Contains(asked[0], want) {
			t.Errorf("weft %s asks %q, want %s (%d %s)", line, asked, want, code, errs)
		}
	}
	for line, want := range map[string]int{"br-exists br0": 0, "br-exists br1": exit.Input, "list-br": 0, "port-to-br p1": 0} {
		if out, errs, code := weft("", strings.Fields(line)...); code != want || strings.HasPrefix(line, "br-exists") == (out == "br0\n") {
			t.Errorf("weft %s: %d %s%s", line, code, out, errs)
		}
	}
}
