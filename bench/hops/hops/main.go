// SPDX-License-Identifier: Apache-2.0

// Command hops shows where a frame's time goes. It reads recordings of the kernel:
// function_graph traces, or perf's call graphs (perf report --stdio, or the output of its
// browser). It prints a bar for each hop of the frame's path. Functions that the table of
// hops (bench/hops/hops.txt) lacks are listed under "unknown".
//
//	go run ./bench/hops/hops bench/hops/testdata/*.txt
//	go run ./bench/hops/hops -record udp_sendmsg FILE COMMAND...
//
// With -record it first runs COMMAND, and records the calls below the named functions
// into FILE with the kernel's function_graph tracer.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"weft/bench/hops"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "hops:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	options := flag.NewFlagSet("hops", flag.ExitOnError)
	record := options.String("record", "", "run a command, and record the calls below these functions; separated by commas")
	top := options.Int("top", 0, "functions to print for each hop")
	everyCall := options.Bool("each", false, "print a bar for each outermost call")
	asJSON := options.Bool("json", false, "print JSON")
	_ = options.Parse(args) // a wrong option ends the program
	files := options.Args()
	if *record != "" {
		if len(files) < 2 {
			return errors.New("-record: expected FILE COMMAND")
		}
		if err := hops.Record(files[0], strings.Split(*record, ","), files[1:]); err != nil {
			return err
		}
		files = files[:1]
	}
	if len(files) == 0 {
		return errors.New("expected recordings, such as bench/hops/testdata/*.txt")
	}
	ledgers, err := read(files, *everyCall)
	if err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(ledgers)
	}
	for _, l := range ledgers {
		if err := l.Print(out, *top); err != nil {
			return err
		}
	}
	return nil
}

func read(files []string, everyCall bool) (ledgers []*hops.Ledger, err error) {
	table, err := hops.NewTable()
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		r, err := hops.Read(file)
		if err != nil {
			return nil, err
		}
		ledgers = append(ledgers, table.Ledgers(r, everyCall)...)
	}
	return ledgers, nil
}
