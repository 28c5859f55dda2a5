// SPDX-License-Identifier: Apache-2.0

// Command suite compares Weft with other switches on this machine, and prints a table. The switches,
// called peers, do the same work with one core each. Their runs alternate, so changes of the machine
// affect all of them. The command "make bench" runs this program.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"weft/bench"
	"weft/bench/central"
	"weft/bench/central/ovn"
	"weft/e2e/lab"
)

// verbs has the main functions of the processes that the suite starts from this program. The key is the
// first argument of the process.
var verbs = map[string]func(args []string){
	driveVerb:  driveUplink,
	guestsVerb: runGuests,
	pairVerb:   runPairs,
	changeVerb: runChanges,
	loopVerb:   runLoops,
	trackVerb:  runTrackGuests,
	hopsVerb:   sendDatagrams,
	pingVerb:   ping,
	pongVerb:   pong,
	memberVerb: runMember,

	centralVerb: func([]string) { lab.Check(central.Command(os.Args[2:])) },
	ovnVerb:     func([]string) { lab.Check(ovn.Command(os.Args[2:])) },
}

type options struct {
	selection, peers, bin, out string
	runs                       int
	length                     time.Duration
	list, keep                 bool
}

func main() {
	if len(os.Args) > 1 {
		if verb, ok := verbs[os.Args[1]]; ok {
			exit(lab.Attempt(func() { verb(os.Args[2:]) }))
		}
	}
	var o options
	flag.StringVar(&o.selection, "scenario", "", "run the experiments of these names, or whose names contain these words, separated by commas; all: every one; without it, a row or two of each family")
	flag.StringVar(&o.peers, "peers", "", "only these peers, separated by commas")
	flag.IntVar(&o.runs, "runs", 5, "alternating runs of each peer")
	flag.DurationVar(&o.length, "length", time.Second, "of each measurement")
	flag.StringVar(&o.bin, "bin", "bin", "folder of weftd and weft")
	flag.StringVar(&o.out, "out", "", "write the results as JSON to this file")
	flag.BoolVar(&o.list, "list", false, "print the experiments and their peers, those that run without -scenario marked with *; run nothing")
	flag.BoolVar(&o.keep, "keep", false, "keep the scratch folders with all logs")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(fmt.Errorf("%q is not understood: options only, see -help", flag.Arg(0)))
	}
	exit(runSuite(o))
}

func list(w io.Writer, chosen []*experiment, runs int) {
	for _, e := range chosen {
		mark := " "
		if slices.Contains(headline, e.name) {
			mark = "*" // the experiment is one of the headline
		}
		fmt.Fprintf(w, "%s %-52s %-14s %s\n", mark, e.name, e.unit, strings.Join(e.peers, ", "))
	}
	fmt.Fprintln(w, newProgress(chosen, runs).size())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runSuite(o options) error {
	if o.list && o.selection == "" {
		o.selection = "all"
	}
	chosen, err := choose(experiments(), o.selection, o.peers)
	if err != nil {
		return err
	}
	if o.list {
		list(os.Stdout, chosen, o.runs)
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("needs root: namespaces, huge pages and XDP")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	if pages, err := hugePages(1536); err == nil {
		defer pages()
	} else {
		fmt.Fprintln(os.Stderr, "bench: peers on DPDK will fail:", err)
	}
	defer lab.CloseAll() // ends the virtual machines and deletes their files
	for _, e := range chosen {
		if e.session != nil {
			e.session.chosen[e.scenario] = true
		}
	}
	report := newReport(o.runs, o.length)
	progress := newProgress(chosen, o.runs)
	fmt.Fprintln(os.Stderr, progress.size())
	for i, e := range chosen {
		fmt.Fprintln(os.Stderr, progress.row(i, e.name))
		if err := measure(ctx, o, e, i, report); err != nil {
			return err
		}
		progress.finished += o.runs * len(e.peers)
		if err := report.keep(o); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "%d rows in %s\n", len(chosen), minutes(time.Since(progress.began)))
	report.Print(os.Stdout)
	return nil
}

// measure runs one experiment. The runs of the compared switches alternate: A B C, A B C.
func measure(ctx context.Context, o options, e *experiment, index int, report *report) error {
	row := report.row(e)
	before, err := bench.Regime(switchCore, guestCore)
	if err != nil {
		return err
	}
	for i := range o.runs {
		for _, peer := range e.peers {
			if t := e.sharedTurn(peer, i); t != nil {
				figure, also, turnErr := e.pick(t)
				row.add(peer, figure, also, t.regimeBefore, t.regimeAfter, turnErr)
				fmt.Fprintf(os.Stderr, "  run %d/%d  %-10s %s\n", i+1, o.runs, peer, outcome(e, figure, turnErr))
				continue
			}
			r := &run{id: fmt.Sprintf("%d-%d", os.Getpid()%10000, index), bin: o.bin, length: o.length, extras: map[string]extra{}}
			figure, turnErr := measureOnce(ctx, r, e, peer, o.keep)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			after, err := bench.Regime(switchCore, guestCore)
			if err != nil {
				return err
			}
			if e.session != nil {
				figure, r.extras, turnErr = e.keep(peer, i, r.turn, before, after, turnErr)
			}
			row.add(peer, figure, r.extras, before, after, turnErr)
			fmt.Fprintf(os.Stderr, "  run %d/%d  %-10s %s  (%s)\n", i+1, o.runs, peer, outcome(e, figure, turnErr), regimes(before, after))
			before = after
		}
	}
	return nil
}

func measureOnce(ctx context.Context, r *run, e *experiment, peer string, keep bool) (figure float64, err error) {
	if r.dir, err = os.MkdirTemp("", "weftbench"); err != nil {
		return 0, err
	}
	if keep {
		fmt.Fprintln(os.Stderr, "  logs:", r.dir)
	} else {
		defer os.RemoveAll(r.dir)
	}
	return r.limited(ctx, cmp.Or(e.limit, turnLimit+turnLengths*r.length), func() float64 { return e.measure(r, peer) })
}

func outcome(e *experiment, figure float64, err error) string {
	if err != nil {
		return "failed: " + oneLine(err)
	}
	return bench.Figure(figure, e.unit)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func regimes(regimeBefore, regimeAfter time.Duration) string {
	from, to := bench.RegimeName(regimeBefore), bench.RegimeName(regimeAfter)
	if from == to {
		return from
	}
	return from + " to " + to
}
