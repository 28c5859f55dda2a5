package main

import "github.com/spf13/cobra"

const hopsHelp = `Reads recordings of the kernel, function_graph traces or perf's call graphs, and
prints how much of the time each hop of a frame's way took.`

// benchHopsCommand is the ledger of hops.
func (c *command) benchHopsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "hops RECORDING...", Short: "tell where a frame's time goes, hop by hop", Long: hopsHelp, Args: words(1, -1),
		RunE: func(*cobra.Command, []string) error { return usagef("hops: not there yet") },
	}
}
