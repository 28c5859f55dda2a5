package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"weft/bench/hops"
)

const hopsHelp = `Tells where a frame's time goes. It reads recordings of the kernel, function_graph
traces or perf's call graphs (perf report --stdio, or what its browser prints),
gives each function's own time to one hop of the frame's way, and prints a bar a
hop; the hops add up to the recording's own total. Functions that the table of
hops (bench/hops/hops.txt) does not have are named under "unknown". Without a
RECORDING it shows those that come with it, of the path that Weft takes over.

--results FILE adds the rows "hops/..." of a result of make bench: the same job
done by Weft and by Linux on the machine that the result is of.
--each has a bar for each outermost call instead of one for all.
--record FUNCTION,... -- COMMAND first records, with the kernel's function_graph,
what runs below these functions while the command does, into the one RECORDING
before the --.`

// hopsOptions are how ledgers are made and shown.
type hopsOptions struct {
	results, svg string
	record       []string
	top          int
	each         bool
}

// benchHopsCommand is the ledger of hops.
func (c *command) benchHopsCommand() *cobra.Command {
	var o hopsOptions
	verb := &cobra.Command{
		Use: "hops [RECORDING...]", Short: "tell where a frame's time goes, hop by hop", Long: hopsHelp, Args: cobra.ArbitraryArgs,
	}
	verb.Flags().StringVar(&o.results, "results", "", "also the rows of a result of make bench")
	verb.Flags().StringVar(&o.svg, "svg", "", "draw those measured in time into this file")
	verb.Flags().StringSliceVar(&o.record, "record", nil, "record below these functions first")
	verb.Flags().IntVar(&o.top, "top", 0, "functions to print of each hop")
	verb.Flags().BoolVar(&o.each, "each", false, "a bar for each outermost call")
	verb.RunE = func(cmd *cobra.Command, args []string) error {
		files, run := args, []string(nil)
		if at := cmd.ArgsLenAtDash(); at >= 0 {
			files, run = args[:at], args[at:]
		}
		switch {
		case o.record != nil && (len(files) != 1 || len(run) == 0):
			return usagef("hops --record: expected RECORDING -- COMMAND")
		case o.record == nil && len(run) > 0:
			return usagef("hops: %s is one word too many; a command goes with --record", run[0])
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
			return &usageError{message: err.Error()}
		}
		ledgers = append(ledgers, table.Ledgers(r, o.each)...)
	}
	if o.results != "" {
		measured, err := table.ReadMeasured(o.results)
		if err != nil {
			return &usageError{message: err.Error()}
		}
		ledgers = append(ledgers, measured...)
	}
	if o.svg != "" {
		if err := drawHops(table, ledgers, o.svg); err != nil {
			return err
		}
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

// drawHops draws the ledgers of the first one's unit: bars of different units
// would not compare.
func drawHops(table *hops.Table, ledgers []*hops.Ledger, file string) error {
	var same []*hops.Ledger
	var names []string
	for _, l := range ledgers {
		if l.Unit == ledgers[0].Unit {
			same, names = append(same, l), append(names, l.Name)
		}
	}
	picture := table.Draw("Where a frame's time goes", strings.Join(names, ", "), same)
	if err := os.WriteFile(file, []byte(picture.SVG()), 0o644); err != nil {
		return fmt.Errorf("--svg: %w", err)
	}
	return nil
}
