// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"weft/cmd/exit"
)

// An unknown verb is refused with a list of similar verbs. The verb help does the
// same.
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
		{"bench x", "x: no such verb; expected one of client, hops, server"},
		{"help bench x", "x: no such verb; expected one of client, hops, server"},
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
