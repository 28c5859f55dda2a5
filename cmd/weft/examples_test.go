// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"weft/cmd/exit"
	"weft/cmd/manpage"
	"weft/openflow"
)

// shellWords splits a command line into words, as a shell does. It leaves out redirections, and the text from
// && on.
func shellWords(line string) (words []string) {
	line, _, _ = strings.Cut(line, " && ")
	for _, word := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1) {
		if word[0] != '<' && word[0] != '>' {
			words = append(words, strings.Trim(word, `'"`))
		}
	}
	return words
}

// The help of each verb has an example. An example succeeds if a daemon is enough to serve it. Other examples
// have valid arguments.
func TestExamplesOfVerbs(t *testing.T) {
	fakeDaemon(t)
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"flows.txt": "actions=drop", "later.txt": "actions=normal", "groups.txt": "group_id=1,type=all", "meters.txt": ""} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, found := new(command).root(), map[string]bool{}
	for _, verb := range append(leavesOf(root), named(t, root, "show"), named(t, root, "log")) {
		if !verb.IsAvailableCommand() || verb.Name() == "help" {
			continue
		}
		word := wordOf(verb)
		if found[word] = true; verb.Example == "" {
			t.Errorf("weft %s: its help has no example", pathOf(verb))
		}
		for line := range strings.Lines(verb.Example) {
			checkExample(t, word, strings.TrimSpace(line))
		}
		if _, same := verb.Annotations[manpage.SameAs]; same && !strings.Contains(verb.Long, "The same as weft "+word+".") {
			t.Errorf("the help of weft %s does not name %s", pathOf(verb), word)
		}
	}
	for word := range examples {
		if !found[word] {
			t.Errorf("examples of %s, which is no verb", word)
		}
	}
}

func named(t *testing.T, root *cobra.Command, words ...string) *cobra.Command {
	t.Helper()
	verb, _, err := root.Find(words)
	if err != nil {
		t.Fatal(err)
	}
	return verb
}

// checkExample runs an example of the verb "word", or only checks its arguments if a daemon is not enough to
// serve it.
func checkExample(t *testing.T, word, line string) {
	t.Helper()
	args := shellWords(line)[1:]
	if _, served := jsonLines[word]; served && line != "weft top" {
		if _, errs, code := weft("actions=drop", args...); code != 0 && (code != exitDiffer || word != "diff-flows") {
			t.Errorf("%s: %d %s", line, code, errs)
		}
	} else {
		verb, rest, err := new(command).root().Find(args)
		if err == nil {
			err = verb.ParseFlags(rest)
		}
		if err == nil {
			err = verb.ValidateArgs(verb.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	var err error
	switch text := args[len(args)-1]; word {
	case "add-flow", "mod-flows":
		_, err = openflow.ParseFlowMod(text, openflow.Add, exampleNames{})
	case "add-group", "mod-group":
		_, err = openflow.ParseGroupMod(text, openflow.GroupAdd, exampleNames{})
	case "add-meter", "mod-meter":
		_, err = openflow.ParseMeterMod(text, openflow.MeterAdd)
	}
	if err != nil {
		t.Errorf("%s: %v", line, err)
	}
}

// A verb of a noun (weft flow add) and its word from Open vSwitch's tools (weft add-flow) do the same: they
// send the same requests, have the same completion and refuse the same arguments.
func TestNounsAndWords(t *testing.T) {
	fakeDaemon(t)
	for _, c := range []struct{ noun, word string }{
		{"flow add", "add-flow"}, {"flow list", "dump-flows"}, {"flow show", "dump-flows"}, {"flow list br-int table=0", "dump-flows br-int table=0"},
		{"vport set br-int", "mod-port br-int"}, {"ct show zone=1", "dump-conntrack zone=1"}, {"fdb show", "fdb-show"},
		{"fdb list --no-names", "fdb-show --no-names"}, {"bridge list", "list-br"}, {"table set all evict", "mod-table all evict"},
		{"__complete vport del ", "__complete del-port "}, {"__complete flow add in_po", "__complete add-flow in_po"},
		{"__complete vport add x type=vxlan vn", "__complete add-port x type=vxlan vn"},
		{"__complete fdb flush ", "__complete fdb-flush "}, {"__complete controller get ", "__complete get-controller "},
	} {
		out, errs, code := weft("", strings.Split(c.noun, " ")...)
		same, sameErrs, sameCode := weft("", strings.Split(c.word, " ")...)
		noun := strings.Join(strings.Fields(c.noun)[:2], " ")
		sameErrs = strings.Replace(sameErrs, "weft: "+strings.Fields(c.word)[0]+":", "weft: "+noun+":", 1)
		if out != same || errs != sameErrs || code != sameCode {
			t.Errorf("weft %s: %d %q %q\nweft %s: %d %q %q", c.noun, code, out, errs, c.word, sameCode, same, sameErrs)
		}
	}
	if _, errs, code := weft("", "flow", "ad"); code != exit.Input || !strings.Contains(errs, "ad: no such verb; expected add, perhaps") {
		t.Errorf("flow ad: %d %s", code, errs)
	}
	// The verbs of weft-central refuse the options of ports of this switch, and name the verb for these.
	for _, verb := range []string{"add", "set"} {
		if _, errs, code := weft("", "port", verb, "vm1", "type=tap"); code != exit.Input || !strings.Contains(errs, "weft vport "+verb) {
			t.Errorf("port %s: %d %s", verb, code, errs)
		}
	}
	// weft help lists the verbs of Open vSwitch's tools last.
	help, _, _ := weft("", "help")
	if words := strings.Index(help, "add-flow"); words < strings.Index(help, "vport") || words < strings.Index(help, "sync") || !slices.Contains(strings.Fields(help), "list,") {
		t.Errorf("weft help:\n%s", help)
	}
}
