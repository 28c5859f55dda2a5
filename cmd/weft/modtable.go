// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
)

const modTableHelp = `Changes the settings of a flow table, or of all tables:

  limit:N   largest number of flows in the table; 0: no limit of its own
  evict     an added flow for a full table evicts another one: of lower importance=, or of equal
            importance with a timeout. The least important goes first
  noevict   an added flow for a full table is refused (default)

  weft mod-table 3 limit:1000 evict`

// modTableVerbs returns ovs-ofctl's commands for the settings of flow tables: mod-table and
// dump-tables.
func (c *command) modTableVerbs() []*cobra.Command {
	return []*cobra.Command{
		{
			Use:   "mod-table TABLE|all evict|noevict|limit:N ...",
			Short: "set the limit of a flow table, and whether a full table evicts less important flows",
			Long:  modTableHelp,
			Args:  words(2, 3), RunE: c.modTable,
		},
		{Use: "dump-tables", Short: "print the flow tables that have flows or settings", Args: words(0, 0), RunE: c.dumpTables},
	}
}

func (c *command) modTable(_ *cobra.Command, args []string) error {
	mod := api.ModTable{Table: -1, Settings: args[1:]}
	if args[0] != "all" {
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 0 {
			return exit.Usagef("%s: expected the number of a table, or all", args[0])
		}
		mod.Table = n
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	return client.ModTable(mod)
}

func (c *command) dumpTables(*cobra.Command, []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	list, err := client.Tables()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(list)
	}
	w := c.table("TABLE\tFLOWS\tLIMIT\tEVICTION")
	for _, t := range list {
		limit, evict := "none", "no"
		if t.Limit > 0 {
			limit = strconv.Itoa(t.Limit)
		}
		if t.Evict {
			evict = "yes"
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\n", t.Table, t.Flows, limit, evict)
	}
	return w.Flush()
}
