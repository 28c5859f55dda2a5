// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/cmd/manpage"
)

// nouns are the kinds of objects of a switch, with their verbs, as in "weft flow add". Each verb has a word
// from ovs-ofctl, ovs-vsctl, ovs-dpctl or ovs-appctl that does the same, as in "weft add-flow". Users may
// type either. The nouns of weft-central, such as net, host and port, are in central*.go.
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

// nounVerb is a verb of a noun, and the word of Open vSwitch's tools that does the same.
type nounVerb struct{ name, word string }

// shownVerbs is the largest number of verbs that the line of a noun in "weft help" names.
const shownVerbs = 8

// nounCommands returns a command for each noun. verbs are commands that have the names of the words.
// nounCommands renames them to the verbs of the nouns, so they must not be in use elsewhere.
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

// wordOf returns the word of Open vSwitch's tools for a verb, or the verb's name if it has none.
// The tables of verbs, such as ofctlVerbs, have these words.
func wordOf(verb *cobra.Command) string {
	if word, ok := verb.Annotations[manpage.SameAs]; ok {
		return word
	}
	if verb.Parent() != nil && verb.Parent().HasParent() {
		return strings.TrimPrefix(verb.CommandPath(), verb.Root().Name()+" ")
	}
	return verb.Name()
}

// calledAs returns the name of a verb for messages. If the verb belongs to a noun, the name includes the
// noun.
func calledAs(verb *cobra.Command) string {
	if _, ok := verb.Annotations[manpage.SameAs]; ok {
		return verb.Parent().Name() + " " + verb.Name()
	}
	return verb.Name()
}
