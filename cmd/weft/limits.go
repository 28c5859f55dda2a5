// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"weft/api"
)

const showLimitsHelp = `Prints the use of every resource that ports, zones, VNIs and clients share.

GUARANTEED is the amount reserved for the holder; "-" means none: others may take all
except what the holder has. LIMIT is the largest amount that the
holder may have now. REFUSED counts the holder's refused requests since the daemon
started. EVICTED counts the holder's entries that were evicted for new ones, its own or
others'. With PORT, only this port's rows are printed.`

func (c *command) showLimitsVerb() *cobra.Command {
	return &cobra.Command{
		Use: "limits [PORT]", Short: "print shared resources, their use and limits", Long: showLimitsHelp, Args: words(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			client, err := c.client()
			if err != nil {
				return err
			}
			rows, err := client.Limits(optional(args))
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(rows)
			}
			return c.printLimits(rows)
		},
	}
}

func (c *command) printLimits(rows []api.Limit) error {
	w := c.table("RESOURCE\tHOLDER\tUSED\tGUARANTEED\tLIMIT\tREFUSED\tEVICTED\tUNIT")
	for _, r := range rows {
		holder := r.HolderKind
		if r.Holder != "" {
			holder += " " + r.Holder
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%d\t%d\t%s\n", r.Name, holder, r.Used,
			numberOrNone(r.Guarantee), numberOrNone(r.Limit), r.Refused, r.Evicted, r.Unit)
	}
	return w.Flush()
}

func numberOrNone(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}
