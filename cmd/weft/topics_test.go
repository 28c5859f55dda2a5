// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"weft/conntrack"
	"weft/openflow"
)

// exampleNames implements openflow.Names for the examples in the help topics.
type exampleNames struct{}

func (exampleNames) PortByName(name string) (uint32, bool) {
	i := slices.Index([]string{"vm1", "vm2", "overlay"}, name)
	return uint32(i + 1), i >= 0
}

func (exampleNames) PortName(uint32) (string, bool) { return "", false }

// The flows, groups and meters in the help topics are valid.
func TestExamples(t *testing.T) {
	examples := 0
	for line := range strings.Lines(flowsHelp) {
		verb, text, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "weft "), " ")
		text = strings.Trim(text, `"`)
		var err error
		switch verb {
		case "add-flow":
			_, err = openflow.ParseFlowMod(text, openflow.Add, exampleNames{})
		case "add-group":
			_, err = openflow.ParseGroupMod(text, openflow.GroupAdd, exampleNames{})
		case "add-meter":
			_, err = openflow.ParseMeterMod(text, openflow.MeterAdd)
		default:
			continue
		}
		examples++
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if examples < 5 {
		t.Errorf("%d examples found", examples)
	}
}

// The manual page weft(8) lists every verb. "weft help" prints the help topics.
func TestManual(t *testing.T) {
	root := (&command{}).root()
	pages := manPages(root)
	var text strings.Builder
	pages[0].Write(&text)
	for _, verb := range verbs(root) {
		if verb != "help" && !strings.Contains(text.String(), `.SS "`+strings.ReplaceAll(verb, "-", `\-`)) {
			t.Errorf("weft(8) lacks %s", verb)
		}
	}
	for _, topic := range topics() {
		if out, _, code := weft("", "help", topic.Name()); code != 0 || !strings.HasPrefix(out, topic.Long) {
			t.Errorf("help %s: %d %q", topic.Name(), code, out)
		}
	}
	if len(pages) != 3 || pages[1].Name != "weft-flows" && pages[2].Name != "weft-flows" {
		t.Errorf("pages %+v", pages)
	}
}

// The help of ct-timeout names every timeout.
func TestHelpNamesEveryTimeout(t *testing.T) {
	for name := range strings.SplitSeq(conntrack.ClassNames(), ", ") {
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(timeoutHelp) {
			t.Errorf("no %s in %q", name, timeoutHelp)
		}
	}
}
