// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"weft/bench/hops"
	"weft/cmd/exit"
)

const hopsHelp = `Shows where a frame's time goes. It reads recordings of the kernel: function_graph
traces, or perf's call graphs (perf report --stdio, or the output of its browser). It
assigns each function's own time to one hop of the frame's path and prints a bar for
each hop. The sum of the hops is the recording's total. Functions that the table of
hops (bench/hops/hops.txt) lacks are listed under "unknown". Without a RECORDING it
shows built-in recordings of the kernel path that Weft replaces.

--each prints a bar for each outermost call instead of one for all.
--record FUNCTION,... RECORDING -- COMMAND runs COMMAND and first records the calls
below these functions into RECORDING, with the kernel's function_graph tracer.`

type hopsOptions struct {
	record    []string
	top       int
	everyCall bool
}

func (c *command) benchHopsCommand() *cobra.Command {
	var o hopsOptions
	verb := &cobra.Command{
		Use: "hops [RECORDING...]", Short: "show where a frame's time goes, hop by hop", Long: hopsHelp, Args: cobra.ArbitraryArgs,
	}
	verb.Flags().StringSliceVar(&o.record, "record", nil, "first record the calls below these functions")
	verb.Flags().IntVar(&o.top, "top", 0, "number of functions to print for each hop")
	verb.Flags().BoolVar(&o.everyCall, "each", false, "print a bar for each outermost call")
	verb.RunE = func(cmd *cobra.Command, args []string) error {
		files, run := args, []string(nil)
		if at := cmd.ArgsLenAtDash(); at >= 0 {
			files, run = args[:at], args[at:]
		}
		switch {
		case o.record != nil && (len(files) != 1 || len(run) == 0):
			return exit.Usagef("hops --record: expected RECORDING -- COMMAND")
		case o.record == nil && len(run) > 0:
			return exit.Usagef("hops: %s is one word too many; a command goes with --record", run[0])
		}
		if o.record != nil {
			if err := hops.Record(files[0], o.record, run); err != nil {
				return err
			}
		}
		return c.hops(files, &o)
	}
	return verb
}

func (c *command) hops(files []string, o *hopsOptions) error {
	table, err := hops.NewTable()
	if err != nil {
		return err
	}
	var ledgers []*hops.Ledger
	read := hops.Read
	if len(files) == 0 {
		files, read = hops.Bundled, hops.ReadBundled
	}
	for _, file := range files {
		r, err := read(file)
		if err != nil {
			return &exit.Usage{Message: err.Error()}
		}
		ledgers = append(ledgers, table.Ledgers(r, o.everyCall)...)
	}
	if c.json {
		return c.printJSON(ledgers)
	}
	for _, l := range ledgers {
		if err := l.Print(c.out, o.top); err != nil {
			return err
		}
	}
	return nil
}
