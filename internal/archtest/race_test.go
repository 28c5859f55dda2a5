// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// startsGoroutine matches code that makes something run beside it.
var startsGoroutine = regexp.MustCompile(`(?m)^\s*go (func\b|[\w.]+\()|\bAfterFunc\(|\.Go\(|\bRunParallel\(|\bParallel\(\)`)

// The packages that make race leaves out start no goroutine and use no unsafe, nor do their tests
// and the packages of this module in them.
func TestRaceLeavesOutPlainPackages(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^PLAIN := ((?:.*\\\n)*.*)$`).FindSubmatch(makefile)
	if list == nil {
		t.Fatal("the Makefile has no list PLAIN")
	}
	all := files(t)
	for _, dir := range strings.Fields(strings.ReplaceAll(string(list[1]), "\\\n", " ")) {
		packages, _ := links(all, dir)
		own := func(f file) bool { return f.dir == dir }
		if !slices.ContainsFunc(all, own) {
			t.Errorf("PLAIN has %s, which is no package", dir)
		}
		for _, f := range all {
			if !own(f) || !f.test {
				continue
			}
			for _, path := range f.imports {
				if target, inside := strings.CutPrefix(path, module); inside {
					more, _ := links(all, target)
					packages = append(packages, more...)
				}
			}
		}
		for _, f := range all {
			if !slices.Contains(packages, f.dir) || f.test && f.dir != dir {
				continue
			}
			text, err := os.ReadFile(filepath.Join("../..", f.path))
			if err != nil {
				t.Fatal(err)
			}
			switch code := startsGoroutine.Find(text); {
			case code != nil:
				t.Errorf("%s is in PLAIN of the Makefile, but %s has %q", dir, f.path, strings.TrimSpace(string(code)))
			case slices.Contains(f.imports, "unsafe"):
				t.Errorf("%s is in PLAIN of the Makefile, but %s uses unsafe", dir, f.path)
			}
		}
	}
}
