// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// doc.go lists the exits of every stage: a file that drops frames stands there with all of its reasons.
func TestExits(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	stage := regexp.MustCompile(`(?m)^//\t(\w+) +-> [^;\n]+(?:; drops: (.*))?$`)
	reason := regexp.MustCompile(`\b[A-Z]\w+\b`)
	listed := map[string][]string{}
	for _, m := range stage.FindAllStringSubmatch(string(text), -1) {
		drops, _, _ := strings.Cut(m[2], ", and those of")
		drops, _, _ = strings.Cut(drops, "what ")
		listed[m[1]] = reason.FindAllString(drops, -1)
	}
	if len(listed) < 10 {
		t.Fatalf("doc.go lists the exits of %d stages", len(listed))
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(path, ".go")
		if name == "capture" || strings.HasSuffix(name, "_test") {
			continue // captures show the drops of other stages
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		var used []string
		ast.Inspect(parsed, func(n ast.Node) bool {
			s, is := n.(*ast.SelectorExpr)
			if !is {
				return true
			}
			x, _ := s.X.(*ast.Ident)
			if r, drop := strings.CutPrefix(s.Sel.Name, "Drop"); drop && x != nil && x.Name == "packet" && r != "None" && !strings.HasPrefix(r, "Reason") && !slices.Contains(used, r) {
				used = append(used, r)
			}
			return true
		})
		slices.Sort(used)
		if !slices.Equal(used, listed[name]) {
			t.Errorf("%s drops frames as %v; doc.go lists %v", path, used, listed[name])
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("doc.go lists %s, which is no file", name)
	}
}
