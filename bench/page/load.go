// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
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

func (r *row) number() (float64, bool) {
	n, err := strconv.ParseFloat(strings.ReplaceAll(r.variant(), ",", ""), 64)
	return n, err == nil
}

func (r *row) measured() bool {
	return slices.ContainsFunc(r.Peers, func(p string) bool { return len(r.Samples[p]) > 0 })
}

// load reads all result files. If several files have a row, the newest one is used. A
// file is superseded if newer files have all its rows.
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
	newest := map[string]*row{}
	for _, s := range sources {
		for _, r := range s.report.Rows {
			if r.Name == "" || len(r.Peers) == 0 {
				return nil, nil, fmt.Errorf("%s: a row without a name or peers", s.name)
			}
			newest[r.Name] = &row{r, s.report, filepath.Base(s.name)}
		}
	}
	if len(newest) == 0 {
		return nil, nil, fmt.Errorf("%s has no results", dir)
	}
	for _, s := range sources { // superseded files do not influence the order of rows
		before := len(rows)
		for _, r := range s.report.Rows {
			if n := newest[r.Name]; n.Row == r {
				rows = append(rows, n)
			}
		}
		if len(rows) == before {
			superseded = append(superseded, s.name)
		}
	}
	return rows, superseded, nil
}
