// SPDX-License-Identifier: Apache-2.0

package hops

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func table(t *testing.T) *Table {
	t.Helper()
	table, err := NewTable()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func ledger(t *testing.T, file string) *Ledger {
	t.Helper()
	r, err := Read("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return table(t).Book(r.Name, r.Unit, r.Calls)
}

func near(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance }

// The times of all hops add up to the total time of the trace. The times of the
// netfilter hops add up to the time of netfilter's entry points.
func TestGraphTotals(t *testing.T) {
	for _, c := range []struct {
		file             string
		total, netfilter float64
	}{
		{"udp_sendmsg-vxlan-ixgbe.funcgraph.txt", 191.1, 84.6},
		{"udp_sendmsg-vxlan-igb.funcgraph.txt", 127.6, 55.0},
	} {
		l := ledger(t, c.file)
		if !near(l.Total, c.total, 0.05) {
			t.Errorf("%s: total %.3f, want %.1f", c.file, l.Total, c.total)
		}
		var sum float64
		for _, e := range l.Entries {
			sum += e.Value
		}
		if !near(sum, l.Total, 1e-6) {
			t.Errorf("%s: hops add up to %.3f of %.3f", c.file, sum, l.Total)
		}
		if n := l.Sum("netfilter"); !near(n, c.netfilter, 0.05) {
			t.Errorf("%s: netfilter %.3f, want %.1f", c.file, n, c.netfilter)
		}
		if want := inclusive(t, c.file, "nf_hook_slow"); !near(l.Sum("netfilter"), want, 1e-6) {
			t.Errorf("%s: netfilter %.3f, its entry point says %.3f", c.file, l.Sum("netfilter"), want)
		}
		if u := l.Entry(Unknown); u.Value != 0 {
			t.Errorf("%s: unknown %v", c.file, u.Functions)
		}
	}
}

// inclusive returns the total time of a function's calls, with their callees.
func inclusive(t *testing.T, file, function string) (sum float64) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	indent := ""
	opening := regexp.MustCompile(`\|( +)` + function + `\(\) \{`)
	closing := regexp.MustCompile(`([0-9.]+) us +\|( +)\}`)
	for line := range strings.SplitSeq(string(b), "\n") {
		if m := opening.FindStringSubmatch(line); m != nil {
			indent = m[1]
		}
		if m := closing.FindStringSubmatch(line); m != nil && m[2] == indent {
			took, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			sum, indent = sum+took, ""
		}
	}
	return sum
}

// The hops "system-call entry" and "waiting" together take about three quarters of the
// replicas' cycles.
func TestReportShares(t *testing.T) {
	l := ledger(t, "io_uring-3-replicas.perf.txt")
	if !near(l.Total, 100, 1) {
		t.Errorf("the entries add up to %.2f %%", l.Total)
	}
	if share := l.Entry("system-call entry").Value + l.Entry("waiting").Value; share < 70 || share > 80 {
		t.Errorf("system-call entry and waiting take %.2f %%, want 70 to 80", share)
	}
	// perf's report omits some callers: small branches, and functions with few
	// samples.
	nobody, table := 0.0, table(t)
	for _, f := range l.Entry(Unknown).Functions {
		if h := table.row(Function{Name: f.Name}); h == nil {
			nobody += f.Value
		}
	}
	if nobody > 0.2 {
		t.Errorf("functions with %.2f %% of the cycles are not in the table: %v", nobody, l.Entry(Unknown).Functions)
	}
	if sum := l.Entry(Unknown).Value; sum > 3.2 {
		t.Errorf("functions with %.2f %% of the cycles have no known caller, want at most 3.2", sum)
	}
}

// The shares of all hops add up to perf's total.
func TestTreeShares(t *testing.T) {
	l := ledger(t, "vhost-ovs-vxlan-ixgbe.perf.txt")
	if !near(l.Total, 43.44, 1e-9) {
		t.Errorf("total %.2f", l.Total)
	}
	var sum float64
	for _, e := range l.Entries {
		sum += e.Value
	}
	if !near(sum, l.Total, 1e-6) {
		t.Errorf("hops add up to %.3f of %.3f", sum, l.Total)
	}
	// expected: 0.85 % and 3.66 % for netfilter's hooks, 3.51 % for connection tracking
	if n := l.Sum("netfilter"); !near(n, 8.02, 1e-6) {
		t.Errorf("netfilter %.3f", n)
	}
	if u := l.Entry(Unknown); u.Value != 0 {
		t.Errorf("unknown %v", u.Functions)
	}
}

// The calls of two tasks that alternate on a CPU are told apart.
func TestTurns(t *testing.T) {
	trace := ` 1)               |  first() {
 1)   1.000 us    |    a();
 ------------------------------------------
 1)  one-11   =>  two-22
 ------------------------------------------

 1)               |  second() {
 1)   2.000 us    |    b();
 1)   5.000 us    |  } /* second */
 1)  two-22   =>  one-11
 1)               |    schedule() {
 0)   7.000 us    |  alone();
 1)   3.000 us    |    }
 1) + 10.000 us   |  } /* first */
`
	r, err := parse(strings.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range r.Calls {
		for _, own := range c.Own {
			got = append(got, fmt.Sprintf("%s/%s %g", c.Function, own.Path[len(own.Path)-1].Name, own.Value))
		}
	}
	if want := "second/b 2, second/second 3, alone/alone 7, first/a 1, first/schedule 3, first/first 6"; strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
	if !near(r.Total, 22, 1e-9) {
		t.Errorf("total %v", r.Total)
	}
}

// A file without a consistent recording is refused with a one-line error.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "neither",
		"hello\nworld\n":             "neither",
		" 0)   1.0 us    |  f() {\n": "no call is complete",
		" 0)   1.0 us    |  f();\nCPU:1 [LOST 3 EVENTS]\n":           "line 2: the trace has lost events",
		" 0)               |  f() {\n 0)               |  }\n":       "no time",
		" 0)               |  f() {\n 0)   1.0 us    |  } /* g */\n": "g ends where f should",
	} {
		if _, err := parse(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Within a closed hop, only the hops that hops.txt lists for it can begin. Interrupt
// handlers are an exception.
func TestAssign(t *testing.T) {
	table, err := parseTable("hop a holds b\n\tfa\nhop b holds nothing\n\tfb\nhop c\n\tfc f* [m]\nhop i anywhere\n\tirq\ncaller\n\tlock\n")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"fa": "a", "fa lock": "a", "fa fb": "b", "fa fc": "a", "fb fa": "b", "fb irq": "i", "fb irq fc": "c",
		"fother": "c", "fc nobody": "", "nobody fc": "c", "lock": "", "fa nobody": "a", "fa.isra.0": "a", "fc nobody lock": "",
	} {
		var p []Function
		for _, name := range strings.Fields(path) {
			p = append(p, Function{Name: name})
		}
		got := ""
		if h, _ := table.Assign(p); h != nil {
			got = h.Name
		}
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if h, _ := table.Assign([]Function{{"x", "[m]"}}); h == nil || h.Name != "c" {
		t.Errorf("a module's function: %v", h)
	}
	for _, bad := range []string{"fa", "hop a\n\tx x", "hop a holds z", "hop a\n\t[", "hop a\n\tx[y"} {
		if _, err := parseTable(bad); err == nil {
			t.Errorf("%q is taken for a table", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	recordings, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range recordings {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b[:min(len(b), 2000)]))
	}
	table, err := NewTable()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parse(strings.NewReader(text))
		if err != nil {
			return
		}
		l := table.Book("x", r.Unit, r.Calls)
		sum, size := 0.0, 1.0
		for _, e := range l.Entries {
			sum += e.Value
		}
		for _, c := range r.Calls {
			for _, own := range c.Own {
				size += math.Abs(own.Value)
			}
		}
		if math.Abs(sum-l.Total) > 1e-9*size {
			t.Errorf("hops add up to %v of %v", sum, l.Total)
		}
	})
}
