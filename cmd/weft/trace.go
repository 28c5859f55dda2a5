// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"

	"github.com/spf13/cobra"

	"weft/cmd/exit"
)

const traceHelp = `Follows a frame through the tables. It prints each table looked up, the flow that
matched, each of its actions, the resulting megaflow, and the datapath actions of that
megaflow.

FLOW is a match without masks, for example in_port=vm1,tcp,nw_dst=10.0.0.2,tp_dst=80.
Fields that are not named are 0. The frame is made up: it changes no counter, and
nothing is learned from it. Behind a ct action that names a table it continues as a
frame of a new connection, or in the state of --ct-next. Behind pop_mpls, pop_pbb and
decap it continues with fields of 0 for the headers that only a real frame has.

With --live it waits for the next real frames that match. MATCH may have masks; without
it all frames match. It prints the cache that found a frame, the executed actions, the
time of each stage of the pass, and the verdict.`

func (c *command) traceVerb() *cobra.Command {
	verb := &cobra.Command{
		Use: "trace FLOW | trace --live [MATCH]", Short: "follow a hypothetical frame through the tables, or real frames through the workers",
		Long: traceHelp, Args: words(0, 1),
	}
	live := verb.Flags().Bool("live", false, "show the next real frames that match")
	ctNext := verb.Flags().String("ct-next", "", "the ct_state that tracking finds, as in +est+trk (default +new+trk)")
	count := verb.Flags().IntP("count", "c", 1, "with --live: number of frames; 0: until Ctrl-C")
	verb.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *count < 0:
			return exit.Usagef("-c %d: expected a number of frames", *count)
		case *live && c.numbers:
			return exit.Usagef("trace: --live and --no-names: expected one of them")
		case *live:
			return c.traceLive(cmd.ErrOrStderr(), optional(args), *count)
		case len(args) == 0:
			return exit.Usagef("trace: a word is missing; expected FLOW")
		}
		return c.trace(args[0], *ctNext)
	}
	return c.showsPorts(verb)
}

func (c *command) trace(flow, ctNext string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	t, err := client.Trace(flow, ctNext)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(t)
	}
	_, err = io.WriteString(c.out, t.Text())
	return err
}
