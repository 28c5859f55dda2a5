// SPDX-License-Identifier: Apache-2.0

package hops

import (
	_ "embed"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

//go:embed hops.txt
var tableText string

// Unknown is the name of the hop for functions that the table does not assign.
const Unknown = "unknown"

// callerHop marks helper functions in hops.txt, which belong to the hop of their
// caller.
const callerHop = "caller"

// Hop is a section of a frame's path, such as the transmit path of a driver.
type Hop struct {
	Name  string
	Group string // "" means that the hop has no group
	// If closed is true, only the hops that Holds names may begin below this hop.
	Holds    []string
	closed   bool
	anywhere bool // the hop may begin below every closed hop
}

// Table assigns functions to hops. The file hops.txt explains the table's format. A
// Table is not safe for concurrent use.
type Table struct {
	Hops     []*Hop // in the order of a frame's path
	names    map[string]*Hop
	patterns []pattern // longest first
	modules  []pattern // modules of the kernel
	objects  []pattern // programs and libraries of user space
	known    map[Function]*Hop
}

type pattern struct {
	glob string
	hop  *Hop
}

// NewTable returns the table that is embedded from hops.txt.
func NewTable() (*Table, error) { return parseTable(tableText) }

func parseTable(text string) (*Table, error) {
	t := &Table{names: map[string]*Hop{}, known: map[Function]*Hop{}}
	caller := &Hop{Name: callerHop}
	var hop *Hop
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		var err error
		switch {
		case len(words) == 0:
		case line[0] == '\t' && hop != nil:
			err = t.add(hop, words)
		case words[0] == "hop":
			if hop, err = parseHop(strings.Join(words[1:], " ")); err == nil {
				t.Hops = append(t.Hops, hop)
			}
		case len(words) == 1 && words[0] == callerHop:
			hop = caller
		default:
			err = fmt.Errorf("%q is neither a hop nor a function of one", line)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	for _, h := range t.Hops {
		for _, name := range h.Holds {
			if t.Hop(name) == nil {
				return nil, fmt.Errorf("hop %s holds %s, which there is none of", h.Name, name)
			}
		}
	}
	longestFirst := func(a, b pattern) int { return len(b.glob) - len(a.glob) }
	slices.SortStableFunc(t.patterns, longestFirst)
	slices.SortStableFunc(t.modules, longestFirst)
	slices.SortStableFunc(t.objects, longestFirst)
	return t, nil
}

var hopLine = regexp.MustCompile(`^(.+?)(?: of (\S+))?(?: holds (.+?))?( anywhere)?$`)

func parseHop(text string) (*Hop, error) {
	m := hopLine.FindStringSubmatch(text)
	if m == nil {
		return nil, fmt.Errorf("a hop without a name")
	}
	h := &Hop{Name: m[1], Group: m[2], closed: m[3] != "", anywhere: m[4] != ""}
	if h.closed && m[3] != "nothing" {
		h.Holds = strings.Split(m[3], ", ")
	}
	return h, nil
}

func (t *Table) add(h *Hop, words []string) error {
	for _, w := range words {
		bare := strings.Trim(w, "@[]")
		if _, err := path.Match(bare, bare); err != nil || bare == "" {
			return fmt.Errorf("%s is not a pattern of a name", w)
		}
		switch {
		case w[0] == '[':
			t.modules = append(t.modules, pattern{bare, h})
		case w[0] == '@':
			t.objects = append(t.objects, pattern{bare, h})
		case strings.ContainsAny(w, "*?"):
			t.patterns = append(t.patterns, pattern{w, h})
		case t.names[w] != nil:
			return fmt.Errorf("%s is in two places", w)
		default:
			t.names[w] = h
		}
	}
	return nil
}

// Hop returns the hop with this name, or nil.
func (t *Table) Hop(name string) *Hop {
	for _, h := range t.Hops {
		if h.Name == name {
			return h
		}
	}
	return nil
}

// suffix matches the suffix that a compiler gives the name of a function's part or variant.
var suffix = regexp.MustCompile(`\.(isra|constprop|part|cold|llvm)(\.\d+)*.*$`)

// row returns the hop to which the table assigns function f by its name, without its callers,
// or nil.
func (t *Table) row(f Function) *Hop {
	h, seen := t.known[f]
	if !seen {
		h = t.search(f)
		t.known[f] = h
	}
	return h
}

func (t *Table) search(f Function) *Hop {
	if f.Object != "" && f.Object[0] != '[' {
		return first(t.objects, f.Object)
	}
	name := suffix.ReplaceAllString(f.Name, "")
	if h := t.names[name]; h != nil {
		return h
	}
	if h := first(t.patterns, name); h != nil || f.Object == "" {
		return h
	}
	return first(t.modules, strings.Trim(f.Object, "[]"))
}

func first(list []pattern, name string) *Hop {
	for _, p := range list {
		if ok, _ := path.Match(p.glob, name); ok {
			return p.hop
		}
	}
	return nil
}

// Assign returns the hop of the last function of a path, which begins with the outermost
// caller. If the hop is unknown, Assign returns nil and the function that the table lacks.
func (t *Table) Assign(path []Function) (*Hop, Function) {
	var now *Hop
	unknown := path[len(path)-1] // reported if no hop is found
	for i, f := range path {
		h := t.row(f)
		switch {
		case h != nil && h.Name == callerHop:
			// a helper function has the hop of its caller
		case now != nil && now.closed && (h == nil || !h.anywhere && !slices.Contains(now.Holds, h.Name)):
			// the function counts for the closed hop of its caller
		case h == nil && i < len(path)-1 && now == nil:
			// unknown callers in user space are skipped
		case h == nil:
			now, unknown = nil, f
		default:
			now = h
		}
	}
	return now, unknown
}
