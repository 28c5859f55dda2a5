// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// proseWords are English function words. They must not be names of parameters, results, fields,
// functions or methods. In a comment, a reader would take such a name for a part of the sentence
// ("index at.", "was is the old configuration").
var proseWords = strings.Fields(`
	above after again alike all alone also any as asked asks at be because before below both
	by came did does each early either else ever every everything except for former given
	gives goes gone had has have here how if into is it keeps late least less lies made makes
	may more most must need needed needs never no of off on once only other others over
	said same says should so some stands still
	takes than that then there this too told took under use uses wants was what when
	where which who why will with without would yet`)

// mayBeProse has names that are allowed although they are English function words. The key is the
// package directory and the name with its owner.
var mayBeProse = map[string]string{
	"control/access pipes.once":        "Go's usual name of a sync.Once",
	"control/access Conn.once":         "Go's usual name of a sync.Once",
	"control/access unixListener.once": "Go's usual name of a sync.Once",
}

// proseNames returns the names in a file that are prose words. Before each is its owner: a function,
// method or type.
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
			// Fields include parameters, results and methods of interfaces.
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

// plainWords are adjectives, participles and verbs that comments need in their usual meaning. They may
// be names of parameters and results only if the function's comment does not have to name them.
var plainWords = strings.Fields(`
	changed complete declared expired first found full hard heads inner known last lower match merged
	misses missing newest next old open outer present read rest right running saved soft sort valid
	wanted`)

// mayBePlain has names that comments may name although they are plain words.
var mayBePlain = []string{
	"control/access expired.expired", // the comment begins with the function's own name
	"control/ports Declare.declared", "control/ports Declare.changed", "control/ports setTunnel.changed",
	"control/ports chooseFirst.wanted", "control/ports checkDevices.changed", "control/ports followDevices.changed",
}

// plainNames returns the parameters and results in a file that are plain words and that the function's
// comment names, such as full in "full is true".
func plainNames(f *ast.File) (found []string) {
	for _, d := range f.Decls {
		d, ok := d.(*ast.FuncDecl)
		if !ok || d.Doc == nil {
			continue
		}
		comment := strings.Join(strings.Fields(d.Doc.Text()), " ")
		ast.Inspect(d.Type, func(n ast.Node) bool {
			field, ok := n.(*ast.Field)
			if !ok {
				return true
			}
			for _, name := range field.Names {
				if slices.Contains(plainWords, name.Name) && namedIn(comment, name.Name) {
					found = append(found, d.Name.Name+"."+name.Name)
				}
			}
			return true
		})
	}
	return found
}

// namedIn reports whether word is the subject of a sentence in a comment, without an article before
// it.
func namedIn(comment, word string) bool {
	return regexp.MustCompile(`(^|[.;:,] |\b(If|if|and|result|argument) )` + word + ` (is|are|has|lists|marks|names|reports|says|selects)\b`).MatchString(comment)
}

func TestCommentsNameNoPlainWords(t *testing.T) {
	for _, f := range files(t) {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../..", f.path), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range plainNames(parsed) {
			if slices.Contains(mayBePlain, f.dir+" "+name) {
				continue
			}
			t.Errorf("%s: the comment names the parameter %s, which a reader takes for a plain word; use a name such as oldState or isFull", f.path, name)
		}
	}
}

func TestPlainNamesAreFound(t *testing.T) {
	const source = `package p
		// send sends frames. If full is true, the port is full; last is the last frame.
		func send(full bool, last, first int) (rest int) { return 0 }
		// the next one is next
		func walk(next int) {}`
	f, err := parser.ParseFile(token.NewFileSet(), "bad.go", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := plainNames(f), []string{"send.full", "send.last"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
