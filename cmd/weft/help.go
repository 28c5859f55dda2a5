// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/cmd/exit"
)

// helpVerb returns the command "weft help". It replaces cobra's, which prints the whole usage if the
// command asked for is unknown.
func helpVerb(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [VERB...]", Short: "explain a verb and its options", Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			verb, rest, err := root.Find(args)
			if err != nil {
				return exit.Usagef("%v", err)
			}
			if len(rest) > 0 && verb.HasSubCommands() {
				return noSuchVerb(verb, rest[0])
			}
			verb.InitDefaultHelpFlag()
			verb.InitDefaultVersionFlag()
			return verb.Help()
		},
	}
}

// otherTools maps commands of Open vSwitch's tools that weft does not have to those of weft that do the
// same. Error messages suggest them.
var otherTools = map[string]string{
	"ofproto/trace":         "weft trace FLOW",
	"dpctl/dump-conntrack":  "weft dump-conntrack",
	"dpctl/flush-conntrack": "weft flush-conntrack",
	"dpctl/dump-flows":      "weft dump-megaflows",
	"dpif/dump-flows":       "weft dump-megaflows",
	"fdb/show":              "weft fdb-show",
	"fdb/flush":             "weft fdb-flush",
	"snoop":                 "weft monitor, or weft capture controller for frames that flows send to the controller",
	"dump-ports-desc":       "weft show",
	"list-ports":            "weft show",
	"vlog/list":             "weft log",
	"vlog/set":              "weft log level debug|info|warn|error",
}

func noSuchVerb(cmd *cobra.Command, word string) error {
	if ours, known := otherTools[word]; known && !cmd.HasParent() {
		return exit.Usagef("%s: no such verb; expected %s", word, ours)
	}
	near := cmd.SuggestionsFor(word)
	begun := func(name string) bool { return strings.HasPrefix(name, word) }
	if slices.ContainsFunc(near, begun) {
		near = slices.DeleteFunc(near, func(name string) bool { return !begun(name) })
	}
	if len(near) > 0 && len(near) < 10 {
		slices.Sort(near)
		return exit.Usagef("%s: no such verb; expected %s, perhaps", word, strings.Join(near, " or "))
	}
	if all := verbs(cmd); len(all) < 10 {
		return exit.Usagef("%s: no such verb; expected one of %s", word, strings.Join(all, ", "))
	}
	return exit.Usagef("%s: no such verb; %s help lists them", word, cmd.CommandPath())
}

func verbs(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

// verbGroups are the groups of commands in the text of "weft help", in this order.
var verbGroups = []struct{ title, verbs string }{
	{"Ports and bridges:", "vport bridge"},
	{"Flows:", "flow group meter queue table tlv packet"},
	{"Connections and addresses:", "ct fdb"},
	{"Controllers:", "controller fail-mode"},
	{"What the switch does:", "show top trace monitor capture megaflow bench"},
	{"The switch as a whole:", "apply export log shutdown version"},
	{"A fleet, through weft-central:", "central host net port secgroup sync"},
	{"The same in the words of ovs-ofctl, ovs-vsctl, ovs-dpctl, ovs-appctl and ovn-nbctl:",
		"add-port del-port mod-port dump-ports port-to-br add-br del-br list-br br-exists " +
			"add-flow add-flows replace-flows mod-flows del-flows diff-flows dump-flows dump-aggregate " +
			"add-group add-groups mod-group del-groups dump-groups dump-group-stats add-meter add-meters mod-meter del-meters dump-meters meter-stats " +
			"queue-stats mod-table dump-tables add-tlv-map del-tlv-map dump-tlv-map packet-out dump-megaflows " +
			"dump-conntrack dump-conntrack-exp flush-conntrack ct-get-maxconns ct-set-maxconns ct-get-nconns ct-set-limits " +
			"ct-get-limits ct-del-limits ct-timeout ct-stats-show ct-get-tcp-seq-chk ct-enable-tcp-seq-chk ct-disable-tcp-seq-chk fdb-show fdb-flush " +
			"set-controller get-controller del-controller set-fail-mode get-fail-mode del-fail-mode " +
			"ls-add ls-del ls-list lsp-add lsp-del lsp-list lsp-set-addresses"},
}

// groupVerbs puts each command below root into its group of verbGroups.
func groupVerbs(root *cobra.Command) {
	for _, group := range verbGroups {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, verb := range root.Commands() {
			if slices.Contains(strings.Fields(group.verbs), verb.Name()) {
				verb.GroupID = group.title
			}
		}
	}
	root.SetHelpCommandGroupID("The switch as a whole:")
}
