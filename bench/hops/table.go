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

// Unknown is the hop of functions that the table does not have.
const Unknown = "unknown"

// callerHop marks helper functions, which are booked to their caller's hop.
const callerHop = "caller"

// Hop is a part of a frame's path.
type Hop struct {
	Name  string
	Group string // "" without a group
	// Holds names the hops that may begin below this hop's functions, if the hop is
	// closed; otherwise any may.
	Holds    []string
	closed   bool
	anywhere bool // may begin below a closed hop that does not hold it
}

// Table assigns functions to hops. hops.txt explains its format. It is not safe for
// concurrent use.
type Table struct {
	Hops     []*Hop // in the order of the path
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

// NewTable returns the table of hops.txt.
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

// parseHop reads the text behind the word hop.
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

// Hop returns the hop of that name, or nil.
func (t *Table) Hop(name string) *Hop {
	for _, h := range t.Hops {
		if h.Name == name {
			return h
		}
	}
	return nil
}

// suffix matches what the compiler appends to the name of a function's part or
// variant.
var suffix = regexp.MustCompile(`\.(isra|constprop|part|cold|llvm)(\.\d+)*.*$`)

// row returns the hop of a function by its name alone, nil if the table does not have
// it.
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

// first returns the hop of the first pattern that matches a name.
func first(list []pattern, name string) *Hop {
	for _, p := range list {
		if ok, _ := path.Match(p.glob, name); ok {
			return p.hop
		}
	}
	return nil
}

// Assign follows a path from the outermost function to the one whose time is booked
// and returns the hop. If no hop is known, it returns nil and the unknown function.
func (t *Table) Assign(path []Function) (*Hop, Function) {
	var now *Hop
	unknown := path[len(path)-1] // for example, a lock or a timer without a caller
	for i, f := range path {
		h := t.row(f)
		switch {
		case h != nil && h.Name == callerHop:
			// a closed hop keeps its callees' time
		case now != nil && now.closed && (h == nil || !h.anywhere && !slices.Contains(now.Holds, h.Name)):
			// the path stays in its hop
		case h == nil && i < len(path)-1 && now == nil:
			// An unnamed caller in user space tells nothing about its callees.
		case h == nil:
			now, unknown = nil, f
		default:
			now = h
		}
	}
	return now, unknown
}
