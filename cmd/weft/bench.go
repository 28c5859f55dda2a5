// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

const benchHelp = `Measures the throughput and latency of a path, and where its time goes. make bench
runs the comparisons with other switches.`

// benchVerb returns the verb bench, whose sub-verbs run measurements.
func (c *command) benchVerb() *cobra.Command {
	verb := &cobra.Command{
		Use: "bench", Short: "measure what a path carries and where its time goes", Long: benchHelp,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noSuchVerb(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	verb.AddCommand(c.benchServerVerb(), c.benchClientVerb(), c.benchHopsCommand())
	return verb
}
