// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Result is the content of the file to which the option -json of Command writes.
type Result struct {
	Rows  []Row  `json:"rows"`
	Error string `json:"error,omitempty"` // why the run ended early
}

// apartVariable is an environment variable. If it is set, Command runs in a network namespace of its
// own.
const apartVariable = "WEFT_BENCH_CENTRAL_APART"

// Command runs the scale test with the given command-line arguments. It creates a network namespace
// for the test, so it needs root.
func Command(args []string) error {
	if socket := os.Getenv(hubVariable); socket != "" {
		return serveMillion(socket)
	}
	if os.Getenv(guestsVariable) != "" {
		return serveGuests()
	}
	if !IsApart() {
		return Apart()
	}
	var o Options
	flags := flag.NewFlagSet("central", flag.ContinueOnError)
	flags.StringVar(&o.Bin, "bin", "bin", "folder of weft-central, weftd and weft")
	flags.IntVar(&o.Hosts, "hosts", 100, "simulated hosts, each with an agent")
	flags.IntVar(&o.Real, "real", 0, "real hosts, each with a weftd in a namespace")
	flags.IntVar(&o.Ports, "ports", 1000, "declared ports of simulated hosts")
	flags.StringVar(&o.Topology, "topology", "recorded", "recorded: networks of 250 ports; flat: one network; small: networks of 10 ports")
	flags.IntVar(&o.Batch, "batch", 250, "ports of one request; 0: all in one")
	scenarios := flags.String("scenarios", "load,sync,churn,leader,restart", "what to do after load, separated by commas: "+strings.Join(Scenarios, ","))
	flags.Float64Var(&o.Rate, "rate", 100, "ports a second that come and go during churn")
	flags.DurationVar(&o.Length, "length", 20*time.Second, "of churn")
	flags.DurationVar(&o.Life, "life", 5*time.Second, "of a port of churn")
	flags.StringVar(&o.Dir, "dir", "", "folder for the data of etcd and the logs, kept; by default a temporary one")
	flags.BoolVar(&o.AgentFiles, "agent-files", false, "agents keep their state on disk; here all on one disk")
	flags.StringVar(&o.Profile, "profile", "", "folder for CPU and heap profiles; the centrals are then this program and not weft-central")
	flags.Uint64Var(&o.Seed, "seed", 1, "of all random choices")
	flags.DurationVar(&o.Limit, "limit", 3*time.Minute, "for one step")
	many := flags.Bool("million", false, "measure a hub alone, with its store in memory and plain clients as hosts")
	result := flags.String("json", "", "write the results as JSON to this file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "weft-central-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.Dir = dir
	}
	o.Scenarios, o.IP = strings.Split(*scenarios, ","), underlayIP
	var err error
	if o.Bin, err = filepath.Abs(o.Bin); err != nil {
		return err
	}
	o.Central = filepath.Join(o.Bin, "weft-central")
	if o.Profile != "" {
		o.Central, o.Self = "", []string{os.Args[0]}
	}
	o.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	if err := prepareUnderlay(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	play := Run
	if *many {
		play = Million
	}
	rows, err := play(ctx, o)
	return Finish(*result, rows, err)
}

// IsApart reports whether Apart has started this process, so that the process has a network namespace
// of its own.
func IsApart() bool { return os.Getenv(apartVariable) != "" }

// Apart runs this program again in a network namespace of its own, and passes signals on to it. The
// test therefore leaves no devices behind, and its TCP ports are not in use by other programs.
func Apart() error {
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), apartVariable+"=1")
	again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := again.Start(); err != nil {
		return fmt.Errorf("a network namespace: %w", err)
	}
	go func() {
		for s := range signals {
			_ = again.Process.Signal(s)
		}
	}()
	return again.Wait()
}

// Finish writes the results and the error of a run to a file. If fileName is empty, Finish prints the
// results and returns the error.
func Finish(fileName string, rows []Row, err error) error {
	if fileName == "" {
		for _, r := range rows {
			fmt.Printf("%-8s %-70s %14.4f %s\n", r.Scenario, r.Name, r.Value, r.Unit)
		}
		return err
	}
	r := Result{Rows: rows}
	if err != nil {
		r.Error = err.Error()
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(fileName, data, 0o644)
}
