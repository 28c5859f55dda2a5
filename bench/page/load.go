// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"weft/bench"
)

type row struct {
	*bench.Row
	report *bench.Report
	file   string
}

func (r *row) family() string {
	family, _, _ := strings.Cut(r.Name, "/")
	return family
}

func (r *row) variant() string {
	_, variant, _ := strings.Cut(r.Name, "/")
	return variant
}

// processor returns the name of the processor that the row was measured on, for example
// "Intel Xeon"; "": unknown.
func (r *row) processor() string {
	name, _, _ := strings.Cut(r.report.Machine.CPU, "@")
	name = strings.NewReplacer("(R)", "", "(TM)", "", "(r)", "", "(tm)", "").Replace(name)
	words := slices.DeleteFunc(strings.Fields(name), func(w string) bool { return w == "Processor" || w == "CPU" })
	return strings.Join(words, " ")
}

// processorsOf returns the processors of all rows, in the order of their first rows.
func processorsOf(rows []*row) (list []string) {
	for _, r := range rows {
		if p := r.processor(); !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}

// load reads all result files in a directory. Rows of one name stand side by side, one for each
// processor, because results of different processors cannot be compared. If several files have a row of
// the same name and processor, the newest file's row counts. A file is superseded if newer files of its
// processor have all its rows.
func load(dir string) (rows []*row, superseded []string, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, nil, err
	}
	type source struct {
		name   string
		report *bench.Report
	}
	var sources []source
	for _, name := range names {
		report, err := bench.ReadReport(name)
		if err != nil {
			return nil, nil, err
		}
		sources = append(sources, source{name, report})
	}
	slices.SortStableFunc(sources, func(a, b source) int { return cmp.Compare(a.report.When, b.report.When) })
	type key struct{ name, processor string }
	newest := map[key]*row{}
	keyOf := func(r *row) key { return key{r.Name, r.processor()} }
	for _, s := range sources {
		for _, r := range s.report.Rows {
			if r.Name == "" || len(r.Peers) == 0 {
				return nil, nil, fmt.Errorf("%s: a row without a name or peers", s.name)
			}
			n := &row{r, s.report, filepath.Base(s.name)}
			newest[keyOf(n)] = n
		}
	}
	if len(newest) == 0 {
		return nil, nil, fmt.Errorf("%s has no results", dir)
	}
	for _, s := range sources { // the order of rows comes from files that are not superseded
		before := len(rows)
		for _, r := range s.report.Rows {
			if n := newest[keyOf(&row{Row: r, report: s.report})]; n.Row == r {
				rows = append(rows, n)
			}
		}
		if len(rows) == before {
			superseded = append(superseded, s.name)
		}
	}
	return besideEachOther(rows), superseded, nil
}

// besideEachOther sorts rows so that rows of the same name stand side by side, in the order of
// their processors' names. Otherwise it keeps the order.
func besideEachOther(rows []*row) []*row {
	first := map[string]int{}
	for i, r := range rows {
		if _, ok := first[r.Name]; !ok {
			first[r.Name] = i
		}
	}
	slices.SortStableFunc(rows, func(a, b *row) int {
		return cmp.Or(cmp.Compare(first[a.Name], first[b.Name]), cmp.Compare(a.processor(), b.processor()))
	})
	return rows
}
