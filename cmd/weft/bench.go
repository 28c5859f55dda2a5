// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

const benchHelp = `Measures the throughput and latency of a path between two hosts or guests.`

// benchVerb returns the command "weft bench". Its subcommands server and client measure the throughput
// and the latency of the path between two machines.
func (c *command) benchVerb() *cobra.Command {
	verb := &cobra.Command{
		Use: "bench", Short: "measure what a path carries", Long: benchHelp,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noSuchVerb(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	verb.AddCommand(c.benchServerVerb(), c.benchClientVerb())
	return verb
}
