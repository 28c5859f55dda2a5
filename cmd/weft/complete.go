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

// portWordVerbs are the commands whose first argument is a port's name. The shell can complete the
// name.
var portWordVerbs = []string{"del-port", "dump-ports", "fdb-flush", "show limits", "show routes", "capture", "port-to-br"}

// bridgeWordVerbs are the commands whose first argument is a bridge's name. The shell can complete the
// name.
var bridgeWordVerbs = strings.Fields("del-br br-exists set-controller get-controller del-controller set-fail-mode get-fail-mode del-fail-mode")

// flowWordVerbs are the commands with a flow and its actions as argument, matchWordVerbs those with
// only a match. A bridge's name may come before either.
var (
	flowWordVerbs  = []string{"add-flow", "mod-flows"}
	matchWordVerbs = []string{"del-flows", "dump-flows", "dump-aggregate", "trace"}
)

// completePorts adds shell completion to the commands below root: of flows, of port options, and of the
// ports and bridges of the running daemon. If no daemon answers, no ports and bridges are suggested.
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

// flowWords returns a function that completes the last word of a flow. If "actions" is false, it
// completes only matches.
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

// portOptions completes an option of add-port. It suggests type= first, then the keys of this type of
// port, and the values of a key.
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

// optionValues returns the suggested values of an option of add-port. For dev, netns, peer and bridge
// they are the objects that exist on this machine or in the daemon. For other options they are the
// words in the help.
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

// helpOptions returns the options of each type of port, with the words that may be the option's value.
// It reads them from the help text of add-port. The first key of the map is the type, the second the
// option.
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

// bashAnchor is a line of the bash script that cobra generates. completionBash inserts bashCommas
// before it.
const bashAnchor = "    __weft_handle_special_char \"$cur\" :\n"

// bashCommas is a line of bash. The script of cobra uses printf %q, which puts backslashes before
// commas. bash does not need them, and the next completion would not recognize the word, so this line
// removes them.
const bashCommas = `    COMPREPLY=("${COMPREPLY[@]//\\,/,}")
`

// completionBash returns the script with which bash completes the arguments of weft.
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

// completionVerb returns the command "weft completion", which prints a script for the shell. With the
// script, the shell completes the arguments of weft. "make install" installs the script.
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
