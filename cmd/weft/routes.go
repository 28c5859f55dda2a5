// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"weft/api"
)

const showRoutesHelp = `Prints the paths of tunnels to their remotes, as the kernel routes them. It has the facts of
ovs-appctl ovs/route/show and tnl/neigh/show for the tunnels in use and for declared remotes.

A route with several next hops has a line for each of them while flows use it. STATE:

  reachable   the next hop has answered
  stale       frames leave; the next hop's MAC address is being confirmed
  waiting     the next hop has not answered yet
  failed      the next hop does not answer
  none        no route, or none through a working uplink

With PORT, only this tunnel's paths are printed. weft show prints the state of the remotes
themselves, with BFD.`

func (c *command) showRoutesVerb() *cobra.Command {
	return &cobra.Command{
		Use: "routes [PORT]", Short: "print the paths of tunnels to their remotes", Long: showRoutesHelp, Args: words(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			client, err := c.client()
			if err != nil {
				return err
			}
			routes, err := client.Routes(optional(args))
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(routes)
			}
			return c.printRoutes(routes)
		},
	}
}

func (c *command) printRoutes(routes []api.Route) error {
	w := c.table("PORT\tREMOTE\tLOCAL\tNEXT HOP\tMAC\tDEVICE\tMTU\tSTATE\tREASON")
	word := func(text string) string { return cmp.Or(text, "-") }
	for _, r := range routes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Port, r.Remote, word(r.Local), word(r.NextHop), word(r.MAC), word(r.Device),
			numberOrNone(uint64(r.MTU)), r.State, r.Reason)
	}
	return w.Flush()
}
