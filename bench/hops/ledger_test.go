package hops

import (
	"math"
	"os"
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

func near(a, b, by float64) bool { return math.Abs(a-b) <= by }

// The hops add up to what the recording says of itself, and netfilter's to what
// its entry point says.
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

// inclusive adds up what all calls of a function took with their callees, by
// indentation: the closing line of a call stands under its opening one.
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

// About three quarters of the replicas' cycles are system-call entry and exit,
// and waiting in epoll.
func TestReportShares(t *testing.T) {
	l := ledger(t, "io_uring-3-replicas.perf.txt")
	if !near(l.Total, 100, 1) {
		t.Errorf("the entries add up to %.2f %%", l.Total)
	}
	if share := l.Entry("system-call entry").Value + l.Entry("waiting").Value; share < 70 || share > 80 {
		t.Errorf("entering, leaving and waiting are %.2f %%", share)
	}
	// What no branch has: locks and clocks whose callers took too little to be
	// shown, and functions of a few samples.
	nobody, table := 0.0, table(t)
	for _, f := range l.Entry(Unknown).Functions {
		if h := table.row(Function{Name: f.Name}); h == nil {
			nobody += f.Value
		}
	}
	if nobody > 0.2 {
		t.Errorf("%.2f %% stands nowhere in the table: %v", nobody, l.Entry(Unknown).Functions)
	}
	if sum := l.Entry(Unknown).Value; sum > 3.2 {
		t.Errorf("%.2f %% has no caller", sum)
	}
}

// The tree's two views are one tree.
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
	// 0.85 and 3.66 of hooks, 3.51 of the switch's own tracking.
	if n := l.Sum("netfilter"); !near(n, 8.02, 1e-6) {
		t.Errorf("netfilter %.3f", n)
	}
	if u := l.Entry(Unknown); u.Value != 0 {
		t.Errorf("unknown %v", u.Functions)
	}
}
