// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/cmd/manpage"
)

// nouns are the kinds of objects of a switch, with their commands, as in "weft flow add". Each has a
// second name from ovs-ofctl, ovs-vsctl, ovs-dpctl or ovs-appctl, as in "weft add-flow". Users may type
// either. The nouns for weft-central, such as net, host and port, are in central*.go.
var nouns = []struct {
	name, short string
	verbs       []nounVerb
}{
	{"vport", "ports of this switch", []nounVerb{
		{"add", "add-port"}, {"del", "del-port"}, {"set", "mod-port"}, {"stats", "dump-ports"}, {"bridge", "port-to-br"},
	}},
	{"bridge", "bridges", []nounVerb{{"add", "add-br"}, {"del", "del-br"}, {"list", "list-br"}, {"exists", "br-exists"}}},
	{"flow", "flows", []nounVerb{
		{"add", "add-flow"}, {"load", "add-flows"}, {"replace", "replace-flows"}, {"set", "mod-flows"}, {"del", "del-flows"},
		{"list", "dump-flows"}, {"diff", "diff-flows"}, {"sum", "dump-aggregate"},
	}},
	{"group", "groups", []nounVerb{
		{"add", "add-group"}, {"load", "add-groups"}, {"set", "mod-group"}, {"del", "del-groups"},
		{"list", "dump-groups"}, {"stats", "dump-group-stats"},
	}},
	{"meter", "meters", []nounVerb{
		{"add", "add-meter"}, {"load", "add-meters"}, {"set", "mod-meter"}, {"del", "del-meters"},
		{"list", "dump-meters"}, {"stats", "meter-stats"},
	}},
	{"queue", "queues", []nounVerb{{"stats", "queue-stats"}}},
	{"table", "flow tables", []nounVerb{{"set", "mod-table"}, {"list", "dump-tables"}}},
	{"tlv", "Geneve options as fields", []nounVerb{{"add", "add-tlv-map"}, {"del", "del-tlv-map"}, {"list", "dump-tlv-map"}}},
	{"packet", "frames from the command line", []nounVerb{{"out", "packet-out"}}},
	{"megaflow", "entries of the workers' caches", []nounVerb{{"list", "dump-megaflows"}}},
	{"ct", "tracked connections", []nounVerb{
		{"list", "dump-conntrack"}, {"flush", "flush-conntrack"}, {"expected", "dump-conntrack-exp"}, {"stats", "ct-stats-show"},
		{"count", "ct-get-nconns"}, {"timeout", "ct-timeout"}, {"max", "ct-get-maxconns"}, {"set-max", "ct-set-maxconns"},
		{"limits", "ct-get-limits"}, {"set-limits", "ct-set-limits"}, {"del-limits", "ct-del-limits"},
		{"seq-check", "ct-get-tcp-seq-chk"}, {"enable-seq-check", "ct-enable-tcp-seq-chk"}, {"disable-seq-check", "ct-disable-tcp-seq-chk"},
	}},
	{"fdb", "learned addresses", []nounVerb{{"list", "fdb-show"}, {"flush", "fdb-flush"}}},
	{"controller", "OpenFlow controllers", []nounVerb{{"set", "set-controller"}, {"get", "get-controller"}, {"del", "del-controller"}}},
	{"fail-mode", "what a bridge does without a controller", []nounVerb{{"set", "set-fail-mode"}, {"get", "get-fail-mode"}, {"del", "del-fail-mode"}}},
}

// nounVerb is a command below a noun: its name there, and its name in Open vSwitch's tools.
type nounVerb struct{ name, word string }

// shownVerbs is the largest number of commands that "weft help" lists in the line of a noun.
const shownVerbs = 8

// nounCommands returns a command for each noun, such as "weft flow", with its subcommands. verbs are
// new commands with their names of Open vSwitch's tools. nounCommands renames them, so they must have
// no other parent.
func nounCommands(verbs []*cobra.Command) (list []*cobra.Command) {
	for _, n := range nouns {
		var subs []*cobra.Command
		var names []string
		for _, v := range n.verbs {
			i := slices.IndexFunc(verbs, func(cmd *cobra.Command) bool { return cmd.Name() == v.word })
			sub := verbs[i]
			_, usage, _ := strings.Cut(sub.Use, " ")
			sub.Use = strings.TrimSpace(v.name + " " + usage)
			sub.Annotations = map[string]string{manpage.SameAs: v.word}
			if v.name == "list" {
				sub.Aliases = []string{"show"}
			}
			subs, names = append(subs, sub), append(names, v.name)
		}
		if len(names) > shownVerbs {
			names = append(names[:shownVerbs], "...")
		}
		list = append(list, group(n.name, n.short+": "+strings.Join(names, ", "), "", subs...))
	}
	return list
}

// wordOf returns a command's name in Open vSwitch's tools, or its own name if it has none there. The
// tables of commands, such as ofctlVerbs, have these names.
func wordOf(verb *cobra.Command) string {
	if word, ok := verb.Annotations[manpage.SameAs]; ok {
		return word
	}
	if verb.Parent() != nil && verb.Parent().HasParent() {
		return strings.TrimPrefix(verb.CommandPath(), verb.Root().Name()+" ")
	}
	return verb.Name()
}

// calledAs returns the name of a command for messages. For a subcommand of a noun this is, for example,
// "flow add".
func calledAs(verb *cobra.Command) string {
	if _, ok := verb.Annotations[manpage.SameAs]; ok {
		return verb.Parent().Name() + " " + verb.Name()
	}
	return verb.Name()
}
