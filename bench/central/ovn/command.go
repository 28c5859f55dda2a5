// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"weft/bench/central"
)

// Command runs the test with the given command-line arguments, in a network namespace of its own. With
// the option -json, it writes the results to a file.
func Command(args []string) error {
	if !central.IsApart() {
		return central.Apart()
	}
	var o Options
	flags := flag.NewFlagSet("ovn", flag.ContinueOnError)
	flags.IntVar(&o.Hosts, "hosts", 50, "simulated chassis")
	flags.IntVar(&o.Ports, "ports", 10000, "logical switch ports")
	flags.IntVar(&o.Batch, "batch", 250, "ports of one transaction")
	scenarios := flags.String("scenarios", strings.Join(Scenarios, ","), "what to do, separated by commas")
	flags.Float64Var(&o.Rate, "rate", 10, "ports a second that come and go during churn")
	flags.DurationVar(&o.Length, "length", 20*time.Second, "of churn")
	flags.DurationVar(&o.Life, "life", 10*time.Second, "of a port of churn")
	flags.DurationVar(&o.Timer, "timer", 10*time.Second, "election timer of the databases")
	flags.DurationVar(&o.Limit, "limit", 3*time.Minute, "for one step")
	flags.StringVar(&o.Dir, "dir", "", "folder of the databases and logs, kept; by default a temporary one")
	result := flags.String("json", "", "write the results as JSON to this file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "weft-ovn-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.Dir = dir
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	if _, err := command("ip", "link", "set", "lo", "up"); err != nil {
		return err
	}
	o.Scenarios = strings.Split(*scenarios, ",")
	o.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rows, err := Run(ctx, o)
	return central.Finish(*result, rows, err)
}
