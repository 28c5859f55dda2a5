// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"weft/bench/stream"
)

// result is the result of a series of upgrades. -json prints it.
type result struct {
	Upgrades int      `json:"upgrades"`
	Builds   []string `json:"builds"`
	Rings    string   `json:"rings"`
	Took     float64  `json:"seconds"`
	Load     string   `json:"load_average"`
	Times    []times  `json:"times"`
	Counts   []count  `json:"counts"`
	Failures []string `json:"failures"`
}

// times is a row of times in ms: median, 90 %, 99 % and longest.
type times struct {
	Name    string  `json:"name"`
	Median  float64 `json:"median_ms"`
	Most90  float64 `json:"p90_ms"`
	Most99  float64 `json:"p99_ms"`
	Longest float64 `json:"longest_ms"`
}

type count struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}

func upgradeReport(results []upgrade, t stream.Counted, p probed, drops map[string]uint64) *result {
	r := &result{Upgrades: len(results), Builds: builds[:], Rings: rings(), Failures: []string{}}
	late := int64(0)
	for i := range results {
		if results[i].pause > *limit {
			late++
		}
	}
	for _, row := range []struct {
		name  string
		value func(*upgrade) time.Duration
	}{
		{"pause", func(u *upgrade) time.Duration { return u.pause }},
		{"pause, without the load's own stalls", func(u *upgrade) time.Duration { return u.net }},
		{"engine replaced, by its log", func(u *upgrade) time.Duration { return u.replaced }},
		{"SIGTERM to the new control's answer", func(u *upgrade) time.Duration { return u.duration }},
		{"the load did not run", func(u *upgrade) time.Duration { return u.own }},
	} {
		q := quantilesOf(results, row.value)
		r.Times = append(r.Times, times{row.name, q[0], q[1], q[2], q[3]})
	}
	r.Times = append(r.Times, times{Name: "slowest ping, longest silence of TCP", Median: ms(p.slowest), Longest: ms(p.silence)})
	dropped := int64(0)
	for _, n := range drops {
		dropped += int64(n)
	}
	r.Counts = []count{
		{fmt.Sprintf("pauses longer than %v", *limit), late},
		{"frames received", int64(t.Received)}, {"frames lost", t.Lost}, {"frames received twice", int64(t.Repeated)},
		{"frames out of order", int64(t.Late)}, {"frames with wrong contents", int64(t.Bad)},
		{"buffers lost or used twice", int64(t.Misused)}, {"frames that the switch counted as dropped", dropped},
		{"pings sent", p.sent}, {"pings lost", p.lost}, {"pings answered twice", p.twice},
		{"TCP bytes", p.bytes}, {"TCP connections broken", p.broken},
	}
	fail := func(failed bool, format string, args ...any) {
		if failed {
			r.Failures = append(r.Failures, fmt.Sprintf(format, args...))
		}
	}
	fail(float64(late) > (1-*within)*float64(len(results))+1e-9, "less than %.4g of the pauses are within %v", *within, *limit)
	fail(t.Bad > 0 || t.Misused > 0, "frames were changed, or descriptors were misused")
	fail(t.Lost > dropped, "the switch did not count %d lost frames", t.Lost-dropped)
	fail(p.lost > 0, "%d pings were lost", p.lost)
	fail(p.err != nil, "TCP: %v", p.err)
	return r
}

func (r *result) print(asJSON bool) (ok bool, err error) {
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return len(r.Failures) == 0, e.Encode(r)
	}
	fmt.Printf("%d upgrades, %s and %s in turn, %s rings, in %.0f s; load average %s\n", r.Upgrades, r.Builds[0], r.Builds[1], r.Rings, r.Took, r.Load)
	fmt.Printf("  %-44s %9s %9s %9s %9s\n", "ms", "median", "90%", "99%", "longest")
	for _, t := range r.Times {
		fmt.Printf("  %-44s %9.2f %9.2f %9.2f %9.2f\n", t.Name, t.Median, t.Most90, t.Most99, t.Longest)
	}
	for _, c := range r.Counts {
		fmt.Printf("  %-44s %9d\n", c.Name, c.Value)
	}
	for _, f := range r.Failures {
		fmt.Println("FAILED:", f)
	}
	return len(r.Failures) == 0, nil
}

func rings() string {
	if *packed {
		return "packed"
	}
	return "split"
}

// loadAverage returns the machine's load averages of 1, 5 and 15 minutes, or "".
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	words := strings.Fields(string(text))
	return strings.Join(words[:min(3, len(words))], " ")
}
