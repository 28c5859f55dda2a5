// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"weft/bench"
)

func newReport(runs int, length time.Duration) *report {
	return &report{bench.Report{Version: weftVersion(), When: time.Now().UTC().Format(time.RFC3339), Machine: thisMachine(),
		Runs: runs, Seconds: length.Seconds()}}
}

// report collects the results of all experiments.
type report struct{ bench.Report }

type rowOf struct{ *bench.Row }

func (r *report) row(e *experiment) rowOf {
	row := &bench.Row{Name: e.name, Unit: e.unit, Less: e.smallerIsBetter, Note: e.note, Peers: e.peers, Samples: map[string]bench.Sample{},
		Before: map[string][]int64{}, After: map[string][]int64{}, Also: map[string]map[string]bench.Extra{}, Failures: map[string]string{}}
	r.Rows = append(r.Rows, row)
	return rowOf{row}
}

func (row rowOf) add(peer string, figure float64, extras map[string]extra, regimeBefore, regimeAfter time.Duration, err error) {
	if err != nil {
		row.Failures[peer] = oneLine(err)
		return
	}
	row.Samples[peer] = append(row.Samples[peer], figure)
	row.Before[peer] = append(row.Before[peer], regimeBefore.Nanoseconds())
	row.After[peer] = append(row.After[peer], regimeAfter.Nanoseconds())
	for name, x := range extras {
		if row.Also[peer] == nil {
			row.Also[peer] = map[string]bench.Extra{}
		}
		kept := row.Also[peer][name]
		kept.Unit = x.unit
		kept.Samples = append(kept.Samples, x.value)
		row.Also[peer][name] = kept
	}
}

func (r *report) keep(o options) error {
	if o.out == "" {
		return nil
	}
	return r.Write(o.out)
}
