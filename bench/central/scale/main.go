// SPDX-License-Identifier: Apache-2.0

// Command scale runs the scale test of weft-central. Package bench/central describes
// the test.
//
//	go run ./bench/central/scale -hosts 1000 -ports 10000
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"weft/bench/central"
)

const serveVerb = "serve"

func main() {
	if len(os.Args) == 3 && os.Args[1] == serveVerb {
		exit(central.Serve(os.Args[2]))
	}
	var o central.Options
	flag.IntVar(&o.Hosts, "hosts", 100, "hosts, each with an agent")
	flag.IntVar(&o.Ports, "ports", 1000, "declared ports")
	flag.StringVar(&o.Topology, "topology", "recorded", "recorded: networks of 250 ports; flat: one network; small: networks of 10 ports")
	flag.IntVar(&o.Batch, "batch", 250, "ports of one request; 0: all in one")
	scenarios := flag.String("scenarios", strings.Join(central.Scenarios, ","), "what to do after load, separated by commas")
	flag.Float64Var(&o.Rate, "rate", 100, "ports a second that come and go during churn")
	flag.DurationVar(&o.Length, "length", 20*time.Second, "of churn")
	flag.DurationVar(&o.Life, "life", 5*time.Second, "of a port of churn")
	flag.StringVar(&o.Dir, "dir", "", "folder for the data of etcd and the logs, kept; by default a temporary one")
	flag.BoolVar(&o.AgentFiles, "agent-files", false, "agents keep their state on disk; here all on one disk")
	flag.StringVar(&o.Profile, "profile", "", "folder for CPU and heap profiles")
	flag.Uint64Var(&o.Seed, "seed", 1, "of all random choices")
	flag.DurationVar(&o.Limit, "limit", 3*time.Minute, "for one step")
	asJSON := flag.Bool("json", false, "print the results as JSON")
	flag.Parse()
	o.Scenarios = strings.Split(*scenarios, ",")
	self, err := os.Executable()
	if err != nil {
		exit(err)
	}
	o.Self = []string{self, serveVerb}
	o.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rows, err := central.Run(ctx, o)
	print(rows, *asJSON)
	exit(err)
}

func print(rows []central.Row, asJSON bool) {
	if asJSON {
		_ = json.NewEncoder(os.Stdout).Encode(rows)
		return
	}
	for _, r := range rows {
		fmt.Printf("%-58s %12.3f %s\n", r.Name, r.Value, r.Unit)
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
