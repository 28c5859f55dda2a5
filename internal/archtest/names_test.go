// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// proseWords are English function words, which must not be names of parameters,
// results, fields, functions or methods. In a comment, a reader would take such a name
// for a part of the sentence ("index at.", "was is the old configuration").
var proseWords = strings.Fields(`
	above after again alike all alone also any as asked asks at be because before below both
	by came did does each early either else ever every everything except for former given
	gives goes gone had has have here how if into is it keeps late least less lies made makes
	may more most must need needed needs never no of off on once only other others over
	said same says should so some stands still
	takes than that then there this too told took under use uses wants was what when
	where which who why will with without would yet`)

// mayBeProse has the names that may stay although they are English function words. The
// key is the package directory and the owner of the name.
var mayBeProse = map[string]string{
	"control/access pipes.once":        "Go's usual name of a sync.Once",
	"control/access Conn.once":         "Go's usual name of a sync.Once",
	"control/access unixListener.once": "Go's usual name of a sync.Once",
}

// proseNames returns the names in a file that are prose words. Each follows the name of
// its owner: a function, method or type.
func proseNames(f *ast.File) (found []string) {
	note := func(owner string, names ...*ast.Ident) {
		for _, n := range names {
			if slices.Contains(proseWords, n.Name) {
				found = append(found, strings.TrimPrefix(owner+"."+n.Name, "."))
			}
		}
	}
	inspect := func(n ast.Node, owner string) {
		ast.Inspect(n, func(n ast.Node) bool {
			// a field is also a parameter, a result, or a method of an interface
			if field, ok := n.(*ast.Field); ok {
				note(owner, field.Names...)
			}
			return true
		})
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			receiver := receiverOf(d)
			note(receiver, d.Name)
			inspect(d, strings.TrimPrefix(receiver+"."+d.Name.Name, "."))
		case *ast.GenDecl:
			for _, s := range d.Specs {
				owner := ""
				if t, ok := s.(*ast.TypeSpec); ok {
					owner = t.Name.Name
				}
				inspect(s, owner)
			}
		}
	}
	return found
}

// receiverOf returns the name of the method's receiver type, or "" for a function.
func receiverOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	t := d.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if generic, ok := t.(*ast.IndexExpr); ok {
		t = generic.X
	}
	return fmt.Sprint(t)
}

func TestNamesAreNoProse(t *testing.T) {
	stale := maps.Clone(mayBeProse)
	for _, f := range files(t) {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", f.path), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range proseNames(parsed) {
			key := f.dir + " " + name
			if _, ok := mayBeProse[key]; !ok {
				t.Errorf("%s: %s is a function word; name it by a noun, or by a verb if it is a function, or list it in mayBeProse", f.path, name)
			}
			delete(stale, key)
		}
	}
	for key := range stale {
		t.Errorf("mayBeProse has %s, which does not exist", key)
	}
}

func TestProseNamesAreFound(t *testing.T) {
	const source = `package p
		type record struct { was int; next *record }
		type table interface { has(key int) bool }
		func (r *record) at(why, from int) (all bool) { return func(no int) bool { return no == why }(from) }
		func without() (index int) { at := 1; return at }`
	f, err := parser.ParseFile(token.NewFileSet(), "bad.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"record.was", "table.has", "record.at", "record.at.why", "record.at.all", "record.at.no", "without"}
	if got := proseNames(f); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
