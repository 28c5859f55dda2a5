// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/cmd/exit"
)

// helpVerb returns a help verb that replaces cobra's, which prints the whole usage if
// the verb is unknown.
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

// otherTools maps verbs of Open vSwitch's other tools to the verbs of weft that do the
// same.
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
