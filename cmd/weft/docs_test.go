// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documented matches a command line of weft in a document: at the start of a line of a code
// block, behind && or a prompt, or in backquotes.
var documented = regexp.MustCompile("(?m)(?:^ *(?:\\$ )?|&& |`|exec \\S+ )weft ((?:--?\\S+ )*)([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")

// The verbs in the command lines of weft in docs/ exist.
func TestDocumentedVerbsExist(t *testing.T) {
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatal(err)
	}
	root, found := new(command).root(), 0
	for _, doc := range append(docs, "../../README.md", "../../SECURITY.md", "../../CONTRIBUTING.md") {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range documented.FindAllStringSubmatch(codeOf(string(text)), -1) {
			words := []string{m[2]}
			if m[3] != "" {
				words = append(words, m[3])
			}
			if m[2] == "help" || m[2] == "man" {
				continue
			}
			found++
			verb, rest, err := root.Find(words)
			if err != nil || verb == root || verb.HasSubCommands() && verb.RunE == nil && len(rest) > 0 {
				t.Errorf("%s: weft %s: no such verb", filepath.Base(doc), strings.Join(words, " "))
			}
		}
	}
	if found < 100 {
		t.Errorf("%d commands found: the test looks in the wrong places", found)
	}
}

// codeOf returns the code in a Markdown document: the lines of code blocks, and the words in backquotes. Each
// of these has a line of its own and keeps its backquotes.
func codeOf(doc string) string {
	var code strings.Builder
	block := false
	span := regexp.MustCompile("`[^`\n]+`")
	for line := range strings.Lines(doc) {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			block = !block
		case block:
			code.WriteString(line)
		default:
			for _, s := range span.FindAllString(line, -1) {
				code.WriteString(s + "\n")
			}
		}
	}
	return code.String()
}
