// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
	"weft/openflow"
)

// portWordVerbs are the verbs whose first argument is a port's name, which the shell can complete.
var portWordVerbs = []string{"del-port", "dump-ports", "fdb-flush", "show limits", "show routes", "capture", "port-to-br"}

// bridgeWordVerbs are the verbs whose first argument is a bridge's name, which the shell can complete.
var bridgeWordVerbs = strings.Fields("del-br br-exists set-controller get-controller del-controller set-fail-mode get-fail-mode del-fail-mode")

// flowWordVerbs are the verbs that have a flow with actions as argument. matchWordVerbs are the verbs that
// have a match as argument. A bridge's name may precede either.
var (
	flowWordVerbs  = []string{"add-flow", "mod-flows"}
	matchWordVerbs = []string{"del-flows", "dump-flows", "dump-aggregate", "trace"}
)

// completePorts makes the completion of the shell suggest the words of flows, the options of ports, and the
// ports and bridges of the running daemon. If no daemon answers, it suggests neither ports nor bridges.
func (c *command) completePorts(root *cobra.Command) {
	_ = root.RegisterFlagCompletionFunc("bridge", c.bridgeNames) // error ignored: root has just defined the flag
	c.completeVerbs(root)
}

func (c *command) completeVerbs(parent *cobra.Command) {
	for _, verb := range parent.Commands() {
		c.completeVerbs(verb)
		switch name := wordOf(verb); {
		case slices.Contains(portWordVerbs, name):
			verb.ValidArgsFunction = c.portNames
		case slices.Contains(bridgeWordVerbs, name):
			verb.ValidArgsFunction = c.bridgeNames
		case slices.Contains(flowWordVerbs, name):
			verb.ValidArgsFunction = c.flowWords(true)
		case slices.Contains(matchWordVerbs, name):
			verb.ValidArgsFunction = c.flowWords(false)
		case name == "add-port":
			verb.ValidArgsFunction = c.portOptions
		}
	}
}

func (c *command) ports() []api.Port {
	client, err := c.client()
	if err != nil {
		return nil
	}
	ports, _ := client.Ports("") // error ignored: without a daemon there are no suggestions
	return ports
}

func (c *command) portNames(_ *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(args) == 0 {
		for _, p := range c.ports() {
			if strings.HasPrefix(p.Name, begin) {
				names = append(names, p.Name+"\t"+p.Type+" "+p.State)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (c *command) bridgeNames(_ *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(args) == 0 {
		list, _ := c.bridges() // error ignored: without a daemon there are no suggestions
		for _, b := range list {
			if b.Name != "" && strings.HasPrefix(b.Name, begin) {
				names = append(names, b.Name)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// flowWords returns the function that completes the last word of a flow. If "actions" is false, the argument
// is a match.
func (c *command) flowWords(actions bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, p := range c.ports() {
			names = append(names, p.Name)
		}
		return openflow.Complete(begin, actions, names), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// portOptions completes an option of add-port: first type=, then the other keys that ports of the type have,
// and the values of a key.
func (c *command) portOptions(_ *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	options := helpOptions()
	kind := ""
	for _, word := range args[1:] {
		if value, ok := strings.CutPrefix(word, "type="); ok {
			kind = value
		}
	}
	key, _, valued := strings.Cut(begin, "=")
	var list []string
	switch {
	case kind == "":
		for kind := range options {
			list = append(list, "type="+kind)
		}
	case valued && key == "path":
		return nil, cobra.ShellCompDirectiveDefault // lets the shell suggest file names
	case valued:
		for _, value := range c.optionValues(key, options[kind][key]) {
			list = append(list, key+"="+value)
		}
	default:
		for key := range options[kind] {
			if !slices.ContainsFunc(args[1:], func(word string) bool { return strings.HasPrefix(word, key+"=") }) {
				list = append(list, key+"=")
			}
		}
	}
	list = slices.DeleteFunc(list, func(word string) bool { return !strings.HasPrefix(word, begin) })
	slices.Sort(list)
	if kind != "" && !valued {
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// optionValues returns the values that it suggests for an option of add-port. For dev, netns, peer and bridge
// they are the objects that exist on this machine and in the daemon. For other options they are words, from
// the help.
func (c *command) optionValues(key string, words []string) (values []string) {
	directory := map[string]string{"dev": "/sys/class/net", "netns": "/run/netns"}[key]
	switch {
	case directory != "":
		entries, _ := os.ReadDir(directory) // error ignored: without the directory there are no suggestions
		for _, e := range entries {
			values = append(values, e.Name())
		}
	case key == "peer":
		for _, p := range c.ports() {
			values = append(values, p.Name)
		}
	case key == "bridge":
		values, _ = c.bridgeNames(nil, nil, "")
	default:
		values = words
	}
	return values
}

var (
	helpType   = regexp.MustCompile(`(?m)^  type=(\S+) `)
	helpOption = regexp.MustCompile(`(?:^|[ \[])([a-z][a-z_-]*)=([^\s\]]*)`)
	helpAs     = regexp.MustCompile(`as type=([a-z-]+)(?:, without (.*?); )?`)
	plainWord  = regexp.MustCompile(`^[a-z][a-z0-9.-]*$`)
)

// helpOptions returns the options of each type of port, and for each option the words that may be its value.
// It reads them from the help text of add-port. The first key is the type, the second the option.
func helpOptions() map[string]map[string][]string {
	table, common, _ := strings.Cut(portSyntax, "\n\nA vhost-user")
	starts := helpType.FindAllStringSubmatchIndex(table, -1)
	options := map[string]map[string][]string{}
	for n, at := range starts {
		end := len(table)
		if n+1 < len(starts) {
			end = starts[n+1][0]
		}
		kind, text := table[at[2]:at[3]], table[at[1]:end]
		list := map[string][]string{}
		if as := helpAs.FindStringSubmatch(text); as != nil {
			text = strings.Replace(text, as[0], "", 1)
			for key, words := range options[as[1]] {
				if !strings.Contains(as[2], key+"=") {
					list[key] = words
				}
			}
		}
		addOptions(list, text)
		switch kind {
		case "uplink", "af_xdp", "af_packet":
		case "mirror", "ipfix", "sflow":
			list["bridge"] = nil
		default:
			addOptions(list, common)
		}
		delete(list, "type")
		options[kind] = list
	}
	return options
}

func addOptions(list map[string][]string, text string) {
	for _, m := range helpOption.FindAllStringSubmatch(text, -1) {
		if _, there := list[m[1]]; there {
			continue
		}
		list[m[1]] = nil
		for _, word := range strings.Split(m[2], "|") {
			if plainWord.MatchString(word) {
				list[m[1]] = append(list[m[1]], word)
			}
		}
	}
}

// bashAnchor is a line in the script that cobra generates for bash. completionBash inserts bashCommas before
// it.
const bashAnchor = "    __weft_handle_special_char \"$cur\" :\n"

// bashCommas removes the backslashes that cobra's script, which uses printf %q, puts before commas. Bash does
// not need them, and the next completion would not recognize the word with them.
const bashCommas = `    COMPREPLY=("${COMPREPLY[@]//\\,/,}")
`

// completionBash returns the script that makes bash complete weft's words.
func completionBash(root *cobra.Command) (string, error) {
	var script bytes.Buffer
	if err := root.GenBashCompletionV2(&script, true); err != nil {
		return "", fmt.Errorf("completion for bash: %w", err)
	}
	before, after, found := strings.Cut(script.String(), bashAnchor)
	if !found {
		return "", errors.New("completion for bash: cobra's script has changed")
	}
	return before + bashCommas + bashAnchor + after, nil
}

// completionVerb returns the verb that prints the script with which a shell completes weft's words. "make
// install" runs the verb.
func completionVerb() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "print the script for a shell's completion", Hidden: true, Args: words(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				script, err := completionBash(root)
				if err != nil {
					return err
				}
				_, err = io.WriteString(out, script)
				return err
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return exit.Usagef("%s: expected bash, zsh or fish", args[0])
		},
	}
}
