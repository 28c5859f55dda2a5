package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"weft/api"
)

const showLimitsHelp = `Prints the use of everything that ports, zones, VNIs and clients share.

GUARANTEED is the part that others cannot take. LIMIT is the most that the holder may
have at the moment. REFUSED counts requests for more since the daemon started, EVICTED
entries of the holder that made room for others or for its own. With PORT, only the rows
that this port holds.`

// showLimitsVerb returns the verb show limits.
func (c *command) showLimitsVerb() *cobra.Command {
	return &cobra.Command{
		Use: "limits [PORT]", Short: "print what is shared, its use and its limits", Long: showLimitsHelp, Args: words(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			client, err := c.client()
			if err != nil {
				return err
			}
			port := ""
			if len(args) == 1 {
				port = args[0]
			}
			rows, err := client.Limits(port)
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
