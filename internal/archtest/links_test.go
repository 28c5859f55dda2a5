// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	fencedBlock  = regexp.MustCompile("(?ms)^```.*?^```")
	codeSpan     = regexp.MustCompile("`[^`\n]+`")
	markdownLink = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)`)
	headingLine  = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *#*$`)
	linkTarget   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// relativeLinks returns the links in a Markdown document that lead to files of the repository. It
// ignores code.
func relativeLinks(doc string) []string {
	doc = codeSpan.ReplaceAllString(fencedBlock.ReplaceAllString(doc, ""), "")
	var targets []string
	for _, m := range markdownLink.FindAllStringSubmatch(doc, -1) {
		if u, err := url.Parse(m[1]); err != nil || u.Scheme == "" && u.Host == "" {
			targets = append(targets, m[1])
		}
	}
	return targets
}

// anchors returns the URL fragments that GitHub generates for the headings of a document.
func anchors(doc string) []string {
	var all []string
	seen := map[string]int{}
	for _, m := range headingLine.FindAllStringSubmatch(fencedBlock.ReplaceAllString(doc, ""), -1) {
		text := linkTarget.ReplaceAllString(m[1], "$1")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, text)
		if n := seen[anchor]; n > 0 {
			all = append(all, anchor+"-"+string(rune('0'+n)))
		} else {
			all = append(all, anchor)
		}
		seen[anchor]++
	}
	return all
}

// linkError returns what is wrong with the relative link target in the document at path, or "".
func linkError(path, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return err.Error()
	}
	file := path
	if u.Path != "" {
		file = filepath.Join(filepath.Dir(path), filepath.FromSlash(u.Path))
	}
	if _, err := os.Stat(file); err != nil {
		return "the file does not exist"
	}
	if u.Fragment == "" || filepath.Ext(file) != ".md" {
		return ""
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	if !slices.Contains(anchors(string(text)), u.Fragment) {
		return "the file has no such heading"
	}
	return ""
}

// markdownFiles calls visit for each Markdown file of the repository, with the file's path, name and
// text.
func markdownFiles(t *testing.T, visit func(path, name, text string)) {
	t.Helper()
	const root = "../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			name, _ := filepath.Rel(root, path)
			visit(path, name, string(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Every relative link in a Markdown file leads to an existing file and heading.
func TestLinksLeadSomewhere(t *testing.T) {
	links := 0
	markdownFiles(t, func(path, name, text string) {
		for _, target := range relativeLinks(text) {
			links++
			if wrong := linkError(path, target); wrong != "" {
				t.Errorf("%s links to %s: %s", name, target, wrong)
			}
		}
		if strings.Contains(codeSpan.ReplaceAllString(text, ""), "[](") {
			t.Errorf("%s has a link without a text", name)
		}
	})
	if links < 60 {
		t.Errorf("found %d relative links, want at least 60", links)
	}
}

// A code span in a Markdown table ends in the row in which it begins.
func TestTablesAreWhole(t *testing.T) {
	rows := 0
	markdownFiles(t, func(_, doc, text string) {
		for _, line := range strings.Split(fencedBlock.ReplaceAllString(text, ""), "\n") {
			if !strings.HasPrefix(line, "|") {
				continue
			}
			rows++
			if strings.Count(line, "`")%2 != 0 || !strings.HasSuffix(line, "|") {
				t.Errorf("%s has an unfinished row of a table: %.80s", doc, line)
			}
		}
	})
	if rows < 300 {
		t.Errorf("found %d rows of tables, want at least 300", rows)
	}
}

// If a Markdown file has the path of a Go file in backquotes, the Go file exists.
func TestMarkdownNamesExistingFiles(t *testing.T) {
	named := 0
	markdownFiles(t, func(_, doc, text string) {
		files, _ := codeNames(text)
		for _, name := range files {
			named++
			if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
				t.Errorf("%s names %s, which does not exist", doc, name)
			}
		}
	})
	if named < 100 {
		t.Errorf("found %d names of Go files, want at least 100", named)
	}
}

// decisionWords is the greatest number of words in a decision, which should fit on one page. Profiles
// and logs belong in commit messages.
const decisionWords = 450

var word = regexp.MustCompile(`\S*\w\S*`)

// docs/decisions/README.md lists every decision under the title that the decision's file has. A
// decision has at most decisionWords words.
func TestDecisionsAreListed(t *testing.T) {
	const dir = "../../docs/decisions"
	list, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "[0-9]*.md"))
	if err != nil || len(names) < 20 {
		t.Fatalf("found %d decisions, error %v", len(names), err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		base := filepath.Base(name)
		if n := len(word.FindAll(text, -1)); n > decisionWords {
			t.Errorf("%s has %d words, want at most %d", base, n, decisionWords)
		}
		number := base[:4]
		line, _, _ := strings.Cut(string(text), "\n")
		title, ok := strings.CutPrefix(line, "# "+number+" ")
		if !ok {
			t.Errorf("%s begins with %q, want \"# %s Title\"", base, line, number)
			continue
		}
		row := "| [" + number + "](" + base + ") | " + title + " |"
		if !strings.Contains(string(list), row+"\n") {
			t.Errorf("docs/decisions/README.md lacks the row %s", row)
		}
	}
}

func TestRelativeLinks(t *testing.T) {
	doc := "[a](x.md) ![p](y.svg) [b](https://example.org/z) `[c](no)` [d](#here)\n```\n[e](no)\n```\n[f](x.md#a-b \"title\")\n"
	if got := strings.Join(relativeLinks(doc), " "); got != "x.md y.svg #here x.md#a-b" {
		t.Errorf("links %s", got)
	}
	doc = "# Now: `weft top [--once]`\n## What others cannot take\n```\n# no\n```\n## [Link](x.md), twice\n## Now: weft top --once\n"
	want := "now-weft-top---once what-others-cannot-take link-twice now-weft-top---once-1"
	if got := strings.Join(anchors(doc), " "); got != want {
		t.Errorf("anchors %s, want %s", got, want)
	}
}

// linkError reports links to files and headings that do not exist.
func TestLinkErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.md")
	if err := os.WriteFile(path, []byte("# One thing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for target, good := range map[string]bool{
		"a.md": true, "a.md#one-thing": true, "#one-thing": true, ".": true,
		"b.md": false, "a.md#two": false, "#two": false, "../none/a.md": false,
	} {
		if got := linkError(path, target); (got == "") != good {
			t.Errorf("link to %s: error %q", target, got)
		}
	}
}
