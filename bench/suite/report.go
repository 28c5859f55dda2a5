package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"weft/bench"
)

// report is what a run of the suite found.
type report struct {
	Version string   `json:"version"`
	When    string   `json:"when"`
	Machine machine  `json:"machine"`
	Runs    int      `json:"runs"`
	Seconds int      `json:"seconds"`
	Bursts  int      `json:"bursts"`
	Rows    []*rowOf `json:"rows"`
}

type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	MHz    string `json:"mhz"`
}

// rowOf is one scenario: a sample for each switch, frames a second.
type rowOf struct {
	Title    string                  `json:"title"`
	Size     int                     `json:"size"`
	Order    []string                `json:"order"`
	Samples  map[string]bench.Sample `json:"frames_per_second"`
	RegimeNS []int64                 `json:"regime_ns"`
	Failures map[string]string       `json:"failures,omitempty"`
}

func newReport(runs, seconds, bursts int) *report {
	return &report{Version: weftVersion(), When: time.Now().UTC().Format(time.RFC3339), Machine: thisMachine(), Runs: runs, Seconds: seconds, Bursts: bursts}
}

func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			m.CPU = strings.TrimSpace(value)
		case "cpu MHz":
			m.MHz = strings.TrimSpace(value)
		}
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = strings.TrimSpace(string(release))
	return m
}

func (r *report) row(title string, size int) *rowOf {
	row := &rowOf{Title: title, Size: size, Samples: map[string]bench.Sample{}, Failures: map[string]string{}}
	r.Rows = append(r.Rows, row)
	return row
}

func (row *rowOf) add(name string, rate float64, regime time.Duration, err error) {
	if _, seen := row.Samples[name]; !seen && row.Failures[name] == "" {
		row.Order = append(row.Order, name)
	}
	row.RegimeNS = append(row.RegimeNS, regime.Nanoseconds())
	if err != nil {
		row.Failures[name] = err.Error()
		return
	}
	row.Samples[name] = append(row.Samples[name], rate)
}

// print writes the table for people: median, spread, and Weft's ratio to each
// peer, run by run.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "weft %s  %s  %d cores  Linux %s  %s  %d alternating runs of %d s\n\n",
		r.Version, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Machine.Go, r.Runs, r.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SCENARIO\tSWITCH\tMEDIAN Mpps\tMIN\tMAX\tRUNS\tWEFT IS\tNOTE")
	for _, row := range r.Rows {
		for _, name := range row.Order {
			s := row.Samples[name]
			ratio := ""
			if name != "weft" {
				if q := row.Samples["weft"].Ratio(s); len(q) > 0 {
					ratio = fmt.Sprintf("%.2f times (%.2f to %.2f)", q.Median(), q.Min(), q.Max())
				}
			}
			fmt.Fprintf(t, "%s\t%s\t%.2f\t%.2f\t%.2f\t%d\t%s\t%s\n", row.Title, name, s.Median()/1e6, s.Min()/1e6, s.Max()/1e6, len(s), ratio, row.Failures[name])
		}
	}
	t.Flush()
}

func (r *report) write(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
