// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"weft/cmd/exit"
)

// weft refuses an unknown verb and names similar verbs. "weft help" with an unknown verb does the same.
func TestNoSuchVerb(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"dump-flow", "dump-flow: no such verb; expected dump-flows, perhaps"},
		{"ad-port type=tap", "ad-port: no such verb; expected add-port or mod-port, perhaps"},
		{"add", "add: no such verb; expected add-br or add-flow or add-flows or add-group or add-groups or add-meter or add-meters or add-port or add-tlv-map, perhaps"},
		{"ofproto/trace br0 udp", "ofproto/trace: no such verb; expected weft trace FLOW"},
		{"dpctl/dump-conntrack", "dpctl/dump-conntrack: no such verb; expected weft dump-conntrack"},
		{"list-ports", "list-ports: no such verb; expected weft show"},
		{"frobnicate", "frobnicate: no such verb; weft help lists them"},
		{"help frobnicate", "frobnicate: no such verb; weft help lists them"},
		{"help dump-flow", "dump-flow: no such verb; expected dump-flows, perhaps"},
		{"bench serve", "serve: no such verb; expected server, perhaps"},
		{"bench x", "x: no such verb; expected one of client, server"},
		{"help bench x", "x: no such verb; expected one of client, server"},
	} {
		out, errs, code := weft("", strings.Fields(c.line)...)
		if errs != "weft: "+c.want+"\n" || out != "" || code != exit.Input {
			t.Errorf("weft %s: %d %q %q", c.line, code, errs, out)
		}
	}
}

// help VERB prints the same as VERB --help.
func TestHelp(t *testing.T) {
	for _, verb := range []string{"", "add-flow", "trace", "bench client"} {
		words := strings.Fields(verb)
		help, _, code := weft("", append([]string{"help"}, words...)...)
		same, _, _ := weft("", append(words, "--help")...)
		if code != 0 || help == "" || help != same {
			t.Errorf("help %s: %d %q", verb, code, help)
		}
	}
}

// Each verb is in one group of "weft help". Each word in a group is a verb.
func TestVerbGroups(t *testing.T) {
	root := new(command).root()
	count := map[string]int{}
	for _, group := range verbGroups {
		for _, name := range strings.Fields(group.verbs) {
			count[name]++
		}
	}
	for _, verb := range root.Commands() {
		if verb.IsAvailableCommand() && count[verb.Name()] != 1 {
			t.Errorf("%s is in %d groups", verb.Name(), count[verb.Name()])
		}
		delete(count, verb.Name())
	}
	for name := range count {
		t.Errorf("%s is no verb", name)
	}
	help, _, _ := weft("", "help")
	if strings.Contains(help, "Additional Commands") || strings.Index(help, "Ports and bridges:") > strings.Index(help, "Controllers:") {
		t.Errorf("weft help has other groups:\n%s", help)
	}
}

// With --json an error is a JSON object. Without it, it is a line of text.
func TestErrorsAsJSON(t *testing.T) {
	for line, want := range map[string]string{
		"--json show":       `{"error":"`,
		"version --json x":  `{"error":"version: x is one word too many; expected no further word (quote words with blanks)","code":2}`,
		"--josn --json":     `{"error":"unknown flag: --josn; expected --json, perhaps","code":2}`,
		"show --josn":       `weft: unknown flag: --josn; expected --json, perhaps`,
		"show --frobnicate": `weft: unknown flag: --frobnicate; weft show --help lists them`,
	} {
		_, errs, code := weft("", append([]string{"--socket", "/nosuchdirectory/s"}, strings.Fields(line)...)...)
		if code == 0 || !strings.HasPrefix(errs, want) {
			t.Errorf("weft %s: %d %q", line, code, errs)
		}
		var object struct {
			Error string
			Code  int
		}
		if strings.Contains(line, "--json") && (json.Unmarshal([]byte(errs), &object) != nil || object.Code != code || object.Error == "") {
			t.Errorf("weft %s: %q", line, errs)
		}
	}
}
