// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestDraw(t *testing.T) {
	dir := t.TempDir()
	source := `// SPDX-License-Identifier: Apache-2.0, and some more words to be long enough

// Package x has a comment that is long enough to be judged.
package x

// short
var a int

//go:generate a directive that is long enough but is no comment

var b int // a comment behind a line that is long enough, too
`
	if err := os.WriteFile(filepath.Join(dir, "x.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	all, err := collect(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 {
		t.Fatalf("%q", all)
	}
	if one := draw(all, 1, 1); len(one) != 1 || !slices.Equal(one, draw(all, 1, 1)) {
		t.Errorf("%q", one)
	}
	if many := draw(all, 2, 60); len(many) != 2 {
		t.Errorf("%q", many)
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"x"}, {"1", "x"}, {"1", "0"}, {"1", "2", "3"}} {
		if _, _, err := arguments(args); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	if seed, n, err := arguments([]string{"7"}); seed != 7 || n != 60 || err != nil {
		t.Errorf("%d %d %v", seed, n, err)
	}
}
