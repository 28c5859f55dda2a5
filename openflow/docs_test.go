// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/openflow.md names every field and every action. The tests that it names exist.
func TestDocsAreTrue(t *testing.T) {
	b, err := os.ReadFile("../docs/openflow.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	words := map[string]bool{}
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(doc, -1) {
		words[word] = true
	}
	row := regexp.MustCompile(`^(x*reg|tun_metadata)\d+$`)
	for id := FTunID; id < fieldCount; id++ {
		for _, name := range []string{fields[id].name, fields[id].alias} {
			if name != "" && !words[name] && !row.MatchString(name) { // the document lists registers as ranges
				t.Errorf("docs/openflow.md does not name the field %s", name)
			}
		}
	}
	for name := range actionWords {
		if !words[name] {
			t.Errorf("docs/openflow.md does not name the action %s", name)
		}
	}
	for _, name := range strings.Fields(actionsNotYet) {
		if !words[name] && !strings.Contains(name, "mpls") && !strings.Contains(name, "nsh") && name != "nat" {
			t.Errorf("docs/openflow.md does not name the unsupported action %s", name)
		}
	}
	tests := testNames(t)
	for _, name := range regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`").FindAllStringSubmatch(doc, -1) {
		if !tests[name[1]] {
			t.Errorf("docs/openflow.md names the test %s, which does not exist", name[1])
		}
	}
}

func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
