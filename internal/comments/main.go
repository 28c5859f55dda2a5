// SPDX-License-Identifier: Apache-2.0

// Command comments prints a random sample of the module's comments, with file and
// line but without code, for readers who judge whether each comment is clear.
//
//	comments SEED [N]
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// shortest is the length in bytes of the shortest comment in a sample. Shorter comments are only headings.
const shortest = 40

type comment struct {
	place string // file:line
	text  string
}

func main() {
	seed, n, err := arguments(os.Args[1:])
	if err == nil {
		err = run(seed, n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "comments:", err)
		os.Exit(1)
	}
}

func arguments(args []string) (seed uint64, n int, err error) {
	n = 60
	if len(args) < 1 || len(args) > 2 {
		return 0, 0, fmt.Errorf("usage: comments SEED [N]")
	}
	if seed, err = strconv.ParseUint(args[0], 10, 64); err != nil {
		return 0, 0, fmt.Errorf("seed: %w", err)
	}
	if len(args) == 2 {
		if n, err = strconv.Atoi(args[1]); err != nil || n < 1 {
			return 0, 0, fmt.Errorf("expected a number of comments, not %q", args[1])
		}
	}
	return seed, n, nil
}

func run(seed uint64, n int) error {
	all, err := collect(".")
	if err != nil {
		return err
	}
	for i, c := range draw(all, seed, n) {
		fmt.Printf("%d. %s\n\t%s\n\n", i+1, c.place, strings.ReplaceAll(strings.TrimSpace(c.text), "\n", "\n\t"))
	}
	return nil
}

// draw returns n random comments of the list. The same seed gives the same sample.
func draw(list []comment, seed uint64, n int) []comment {
	sample := slices.Clone(list)
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(sample), func(i, j int) { sample[i], sample[j] = sample[j], sample[i] })
	return sample[:min(n, len(sample))]
}

// collect returns the comments of all Go files below root, sorted by file and line.
func collect(root string) (list []comment, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		if ast.IsGenerated(file) {
			return nil
		}
		for _, group := range file.Comments {
			list = appendComment(list, fset, group)
		}
		return nil
	})
	return list, err
}

func appendComment(list []comment, fset *token.FileSet, group *ast.CommentGroup) []comment {
	text := group.Text() // without directives and markers
	if len(text) < shortest || strings.HasPrefix(text, "SPDX-") {
		return list
	}
	at := fset.Position(group.Pos())
	return append(list, comment{fmt.Sprintf("%s:%d", at.Filename, at.Line), text})
}
