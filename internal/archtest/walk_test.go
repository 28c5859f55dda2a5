// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	quotedWord   = regexp.MustCompile("`([^`]+)`")
	goFile       = regexp.MustCompile(`^[a-z_/]+/[a-z0-9_]+\.go$`)
	functionName = regexp.MustCompile(`^[A-Za-z]+$`)
)

// codeNames returns the Go files and the functions that a document has in backquotes. It assigns a
// function to the last file that precedes it in the same paragraph or list item.
func codeNames(doc string) (files []string, functions [][2]string) {
	doc = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(doc, "")
	for _, item := range regexp.MustCompile(`\n\s*\n|\n *(?:\d+\.|-) `).Split(doc, -1) {
		file := ""
		for _, m := range quotedWord.FindAllStringSubmatch(item, -1) {
			switch word := m[1]; {
			case goFile.MatchString(word):
				file = word
				files = append(files, word)
			case strings.HasPrefix(word, "Test"): // tests may be in another file
			case functionName.MatchString(word) && file != "":
				functions = append(functions, [2]string{file, word})
			}
		}
	}
	return files, functions
}

// declares reports whether the source code declares the name.
func declares(source, name string) bool {
	return regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type |var |const )`+name+`\b`).MatchString(source) ||
		regexp.MustCompile(`(?m)^\t`+name+`(,| +=| +[A-Za-z]| *//|$)`).MatchString(source)
}

// The files and functions that docs/ARCHITECTURE.md and CONTRIBUTING.md name exist.
func TestDocumentsNameWhatExists(t *testing.T) {
	const root = "../.."
	for doc, least := range map[string]int{"docs/ARCHITECTURE.md": 20, "CONTRIBUTING.md": 8} {
		text, err := os.ReadFile(filepath.Join(root, doc))
		if err != nil {
			t.Fatal(err)
		}
		files, functions := codeNames(string(text))
		for _, name := range files {
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("%s names %s, which does not exist", doc, name)
			}
		}
		for _, pair := range functions {
			source, err := os.ReadFile(filepath.Join(root, pair[0]))
			if err == nil && !declares(string(source), pair[1]) {
				t.Errorf("%s names %s after %s, which does not declare it", doc, pair[1], pair[0])
			}
		}
		if len(functions) < least {
			t.Errorf("only %d functions found in %s", len(functions), doc)
		}
	}
}

func TestCodeNames(t *testing.T) {
	files, functions := codeNames("1. `a/b.go` `f` and `x=1`, `G`\n2. `h` alone\n\n`c/d.go`: `i`\n```\n`e/f.go` `j`\n```\n")
	if got := strings.Join(files, " "); got != "a/b.go c/d.go" {
		t.Errorf("files %s", got)
	}
	if len(functions) != 3 || functions[0] != [2]string{"a/b.go", "f"} || functions[2] != [2]string{"c/d.go", "i"} {
		t.Errorf("functions %v", functions)
	}
	if !declares("func (w *W) f(x int) {", "f") || declares("func g() {\n\tf()\n}", "f") || !declares("const (\n\tf = 1\n)", "f") || !declares("type T struct", "T") {
		t.Error("declares is wrong")
	}
}
