package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The walk of a frame in docs/ARCHITECTURE.md names files and functions; each
// of them is there, the function being one of the file named last before it.
func TestWalkNamesWhatExists(t *testing.T) {
	const root = "../.."
	doc, err := os.ReadFile(filepath.Join(root, "docs", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	doc = regexp.MustCompile("(?s)```.*?```").ReplaceAll(doc, nil)
	quoted := regexp.MustCompile("`([^`]+)`")
	file := regexp.MustCompile(`^[a-z/]+/[a-z_]+\.go$`)
	function := regexp.MustCompile(`^[A-Za-z]+$`)
	source, name, functions := "", "", 0
	for _, m := range quoted.FindAllStringSubmatch(string(doc), -1) {
		switch word := m[1]; {
		case file.MatchString(word):
			b, err := os.ReadFile(filepath.Join(root, word))
			if err != nil {
				t.Errorf("docs/ARCHITECTURE.md names a file that is not there: %v", err)
				continue
			}
			source, name = string(b), word
		case function.MatchString(word) && source != "":
			functions++
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?`+word+`\b`).MatchString(source) && !declaredBeside(root, name, word) {
				t.Errorf("docs/ARCHITECTURE.md names %s after %s, which does not have it", word, name)
			}
		}
	}
	if functions < 20 {
		t.Fatalf("only %d functions recognised in docs/ARCHITECTURE.md", functions)
	}
}

// declaredBeside tells whether another file of the same package declares the
// function, for text that goes on about the package just named.
func declaredBeside(root, name, function string) bool {
	siblings, _ := filepath.Glob(filepath.Join(root, filepath.Dir(name), "*.go"))
	for _, s := range siblings {
		b, err := os.ReadFile(s)
		if err == nil && regexp.MustCompile(`(?m)^func (\([^)]*\) )?`+function+`\b`).Match(b) {
			return true
		}
	}
	return false
}
