// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The recipes in CONTRIBUTING.md name only files and identifiers that exist.
func TestRecipesNameWhatIsThere(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, recipes, found := strings.Cut(string(text), "## Recipes")
	if !found {
		t.Fatal("CONTRIBUTING.md has no section Recipes")
	}
	words := identifiers(t, root)
	quoted := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(recipes, -1)
	if len(quoted) < 40 {
		t.Fatalf("%d names in quotes, want at least 40", len(quoted))
	}
	name := regexp.MustCompile(`^(\w+\.)?\w+$`)
	for _, q := range quoted {
		switch said := q[1]; {
		case strings.ContainsAny(said, " -"): // a command
		case strings.Contains(said, "/") || strings.HasSuffix(said, ".md"):
			if _, err := os.Stat(filepath.Join(root, said)); err != nil {
				t.Errorf("CONTRIBUTING.md names a file that does not exist: %s", said)
			}
		case name.MatchString(said):
			if at := strings.LastIndexByte(said, '.'); !words[said[at+1:]] {
				t.Errorf("CONTRIBUTING.md names %s, which no Go file has", said)
			}
		default:
			t.Errorf("CONTRIBUTING.md quotes %s: want a path, an identifier or a command", said)
		}
	}
}

// identifiers returns all identifiers in the code of the module's Go files. It ignores comments.
func identifiers(t *testing.T, root string) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	for _, f := range files(t) {
		src, err := os.ReadFile(filepath.Join(root, f.path))
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		var s scanner.Scanner
		s.Init(set.AddFile(f.path, -1, len(src)), src, nil, 0)
		for {
			_, tok, lit := s.Scan()
			if tok == token.EOF {
				break
			}
			if tok == token.IDENT {
				words[lit] = true
			}
		}
	}
	return words
}
