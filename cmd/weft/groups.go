// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
)

// tableVerbs returns the commands of ovs-ofctl(8) for groups and meters.
func (c *command) tableVerbs() []*cobra.Command {
	groups := func(client *api.Client, change api.ChangeTable) (api.TableChanged, error) {
		return client.ChangeGroups(change)
	}
	meters := func(client *api.Client, change api.ChangeTable) (api.TableChanged, error) {
		return client.ChangeMeters(change)
	}
	type changer = func(*api.Client, api.ChangeTable) (api.TableChanged, error)
	verb := func(usage, op, short, long string, minArgs int, fn changer) *cobra.Command {
		return &cobra.Command{Use: usage, Short: short, Long: long, Args: words(minArgs, 1), RunE: func(_ *cobra.Command, args []string) error {
			return c.changeTable(fn, api.ChangeTable{Op: op, Text: optional(args)})
		}}
	}
	file := func(usage, short string, fn changer) *cobra.Command {
		return &cobra.Command{Use: usage, Short: short, Args: words(1, 1), RunE: func(_ *cobra.Command, args []string) error {
			text, err := c.readFile(args[0])
			if err != nil {
				return err
			}
			return ofFile(args[0], c.changeTable(fn, api.ChangeTable{Op: "add", Text: text, File: true}))
		}}
	}
	mod := verb("mod-group GROUP", "modify", "replace a group", "Replaces a group.\n\n"+groupHelp, 1, groups)
	mayCreate := mod.Flags().Bool("may-create", false, "add the group if it does not exist")
	mod.RunE = func(_ *cobra.Command, args []string) error {
		op := "modify"
		if *mayCreate {
			op = "put"
		}
		return c.changeTable(groups, api.ChangeTable{Op: op, Text: args[0]})
	}
	return []*cobra.Command{
		verb("add-group GROUP", "add", "add a group", "Adds a group.\n\n"+groupHelp, 1, groups),
		file("add-groups FILE|-", "add the groups of a file, all or none", groups), mod,
		verb("del-groups [group_id=N]", "delete", "delete a group, or all, and the flows that name it", "", 0, groups),
		c.showsPorts(&cobra.Command{Use: "dump-groups [group_id=N]", Short: "print the groups", Args: words(0, 1), RunE: c.dumpGroups}),
		{Use: "dump-group-stats [group_id=N]", Short: "print the counters of groups and their buckets", Args: words(0, 1), RunE: c.groupStats},
		verb("add-meter METER", "add", "add a meter", "Adds a meter.\n\n"+meterHelp, 1, meters),
		file("add-meters FILE|-", "add the meters of a file, all or none", meters),
		verb("mod-meter METER", "modify", "replace a meter", "Replaces a meter.\n\n"+meterHelp, 1, meters),
		verb("del-meters [meter=N]", "delete", "delete a meter, or all, and the flows that name it", "", 0, meters),
		{Use: "dump-meters [meter=N]", Short: "print the meters", Args: words(0, 1), RunE: c.dumpMeters},
		{Use: "meter-stats [meter=N]", Short: "print the counters and drops of meters", Args: words(0, 1), RunE: c.meterStats},
		c.queueVerb(),
	}
}

func (c *command) changeTable(fn func(*api.Client, api.ChangeTable) (api.TableChanged, error), change api.ChangeTable) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	n, err := fn(client, change)
	if err != nil || !c.json {
		return err
	}
	return c.printJSON(n)
}

func (c *command) dumpGroups(_ *cobra.Command, args []string) error {
	return c.groups(args, func(g api.Group) { fmt.Fprintln(c.out, " "+g.Line) })
}

func (c *command) groups(args []string, show func(api.Group)) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	which := optional(args)
	if _, err := strconv.ParseUint(which, 10, 32); err == nil {
		which = "group_id=" + which // as in ovs-ofctl, the argument may be the number alone
	}
	list, err := client.Groups(which)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(list)
	}
	for _, g := range list {
		show(g)
	}
	return nil
}

// groupStats prints the statistics of groups in the format of ovs-ofctl.
func (c *command) groupStats(_ *cobra.Command, args []string) error {
	return c.groups(args, func(g api.Group) {
		fmt.Fprintf(c.out, " group_id=%d,duration=%.3fs,ref_count=%d,packet_count=%d,byte_count=%d", g.ID, g.DurationS, g.Flows, g.Packets, g.Bytes)
		for i, b := range g.Buckets {
			fmt.Fprintf(c.out, ",bucket%d:packet_count=%d,byte_count=%d", i, b.Packets, b.Bytes)
		}
		fmt.Fprintln(c.out)
	})
}

func (c *command) meters(args []string, show func(api.Meter)) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	list, err := client.Meters(optional(args))
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(list)
	}
	for i, m := range list {
		if i > 0 {
			fmt.Fprintln(c.out)
		}
		show(m)
	}
	return nil
}

func (c *command) dumpMeters(_ *cobra.Command, args []string) error {
	// ovs-ofctl prints each band of a meter on its own line.
	bands := strings.NewReplacer(" bands=", " bands=\n", " type=", "\ntype=")
	return c.meters(args, func(m api.Meter) { fmt.Fprintln(c.out, bands.Replace(m.Line)) })
}

func (c *command) meterStats(_ *cobra.Command, args []string) error {
	return c.meters(args, func(m api.Meter) {
		fmt.Fprintf(c.out, "meter:%d flow_count:%d packet_in_count:%d byte_in_count:%d duration:%.3fs bands:\n", m.ID, m.Flows, m.Packets, m.Bytes, m.DurationS)
		for i, b := range m.Bands {
			fmt.Fprintf(c.out, "%d: packet_count:%d byte_count:%d\n", i, b.Packets, b.Bytes)
		}
	})
}
