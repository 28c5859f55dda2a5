// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

const queueStatsHelp = `Prints the queues of ports, which qos= of a port sets, with their counts since the last change of
the queue or the start of the engine. DROPPED counts the frames beyond the rate.`

func (c *command) queueVerb() *cobra.Command {
	return &cobra.Command{Use: "queue-stats [PORT]", Short: "print the counters and drops of queues", Long: queueStatsHelp,
		Args: words(0, 1), RunE: c.queueStats}
}

func (c *command) queueStats(_ *cobra.Command, args []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	list, err := client.Queues(optional(args))
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(list)
	}
	w := c.table("PORT\tQUEUE\tKBPS\tBURST KBIT\tSENT\tBYTES\tDROPPED")
	for _, q := range list {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\n", q.Port, q.Queue, q.RateKbps, q.BurstKbit, q.Packets, q.Bytes, q.Dropped)
	}
	return w.Flush()
}
