// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// widestComment is the greatest length of a comment line in columns. A tab counts as one column.
const widestComment = 110

// directive matches comments that are instructions to tools, such as go:build and
// lint:ignore.
var directive = regexp.MustCompile(`^//([a-z]+:[a-z]|line |export )`)

// misformatted returns what is wrong with the format of a comment line, or "". It checks what gofmt
// does not.
func misformatted(line string) string {
	switch {
	case len(line) > 2 && line[2] != ' ' && line[2] != '\t' && !directive.MatchString(line):
		return "no space after //"
	case strings.HasSuffix(line, " ") || strings.HasSuffix(line, "\t"):
		return "blank at the end"
	case len([]rune(line)) > widestComment && strings.Contains(strings.TrimLeft(line[2:], " \t"), " "):
		return "longer than 110 columns"
	}
	return ""
}

// license is the line with which every Go file must begin.
const license = "// SPDX-License-Identifier: Apache-2.0"

func TestCommentsAreFormatted(t *testing.T) {
	for _, f := range files(t) {
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, filepath.Join("../..", f.path), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if len(parsed.Comments) == 0 || parsed.Comments[0].List[0].Text != license || len(parsed.Comments[0].List) != 1 {
			t.Errorf("%s: the first line must be %q, and the second empty", f.path, license)
		}
		if ast.IsGenerated(parsed) {
			continue
		}
		for _, group := range parsed.Comments {
			for _, c := range group.List {
				if strings.HasPrefix(c.Text, "/*") {
					t.Errorf("%s:%d: use // for comments", f.path, fset.Position(c.Pos()).Line)
				} else if wrong := misformatted(c.Text); wrong != "" {
					t.Errorf("%s:%d: comment: %s", f.path, fset.Position(c.Pos()).Line, wrong)
				}
			}
		}
	}
}

func TestMisformatted(t *testing.T) {
	lines := `//without a space
// with a blank at the end 
// a long line ` + strings.Repeat("of words ", 20)
	s := bufio.NewScanner(strings.NewReader(lines))
	for s.Scan() {
		if misformatted(s.Text()) == "" {
			t.Errorf("%q passes", s.Text())
		}
	}
	for _, line := range []string{"//", "// right", "//go:build linux", "//lint:ignore U1000 reason", "//\tcode", "// https://" + strings.Repeat("x", 120)} {
		if wrong := misformatted(line); wrong != "" {
			t.Errorf("%q: %s", line, wrong)
		}
	}
}
