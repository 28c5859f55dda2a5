// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// listedFile matches the name of a file, or a pattern for several files such as parse*.go.
var listedFile = regexp.MustCompile(`[a-z0-9_]+\*?\.go`)

// leastListed is the smallest number of file names that makes a package comment a list of the
// package's files.
const leastListed = 5

// lists reports whether an entry of a list, such as parse*.go, stands for the file.
func lists(name, file string) bool {
	begin, several := strings.CutSuffix(name, "*.go")
	return name == file || several && strings.HasPrefix(file, begin)
}

// unlisted compares a package comment with the files of its package. It returns the files that the
// comment does not name, and the names in the comment that have no file. Both are nil if the comment
// is no list of files.
func unlisted(comment string, files []string) (missingNames, absent []string) {
	names := listedFile.FindAllString(comment, -1)
	if len(names) < leastListed {
		return nil, nil
	}
	for _, f := range files {
		if !slices.ContainsFunc(names, func(name string) bool { return lists(name, f) }) {
			missingNames = append(missingNames, f)
		}
	}
	for _, n := range names {
		if !strings.Contains(n, "*") && !slices.Contains(files, n) {
			absent = append(absent, n)
		}
	}
	return missingNames, absent
}

// A package comment that lists the package's files lists all of them.
func TestPackageCommentsListTheirFiles(t *testing.T) {
	packages := map[string][]string{}
	comments := map[string]string{} // by the path of the file
	for _, f := range files(t) {
		if f.test {
			continue
		}
		packages[f.dir] = append(packages[f.dir], filepath.Base(f.path))
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", f.path), nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		if parsed.Doc != nil {
			comments[f.path] = parsed.Doc.Text()
		}
	}
	found := 0
	for path, comment := range comments {
		inPackage := packages[filepath.Dir(path)]
		if filepath.Base(path) == "doc.go" {
			inPackage = slices.DeleteFunc(slices.Clone(inPackage), func(name string) bool { return name == "doc.go" })
		}
		missing, absent := unlisted(comment, inPackage)
		if len(missing) > 0 {
			t.Errorf("%s: the package comment does not list %v", path, missing)
		}
		if len(absent) > 0 {
			t.Errorf("%s: the package comment lists %v, which do not exist", path, absent)
		}
		if len(listedFile.FindAllString(comment, -1)) >= leastListed {
			found++
		}
	}
	if found < 5 {
		t.Errorf("only %d package comments list files", found)
	}
}

func TestUnlisted(t *testing.T) {
	const comment = "Package p:\n\n\ta.go  one\n\tb.go, c.go  two\n\tparse*.go  text\n\tgone.go  three\n"
	missing, absent := unlisted(comment, []string{"a.go", "b.go", "c.go", "d.go", "parse.go", "parsefield.go"})
	if !slices.Equal(missing, []string{"d.go"}) || !slices.Equal(absent, []string{"gone.go"}) {
		t.Errorf("missing %v, absent %v", missing, absent)
	}
	if missing, absent := unlisted("Package p; see a.go.", []string{"b.go"}); missing != nil || absent != nil {
		t.Errorf("a comment without a list: missing %v, absent %v", missing, absent)
	}
}
