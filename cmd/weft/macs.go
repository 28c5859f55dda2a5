// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

// macVerbs returns the commands of ovs-appctl(8) for learned MAC addresses.
func (c *command) macVerbs() []*cobra.Command {
	return []*cobra.Command{
		c.showsPorts(&cobra.Command{Use: "fdb-show", Short: "print the addresses that normal has learned", Args: words(0, 0), RunE: c.fdbShow}),
		{Use: "fdb-flush [PORT]", Short: "delete the addresses learned on a port, or on all ports", Args: words(0, 1), RunE: c.fdbFlush},
	}
}

func (c *command) fdbShow(*cobra.Command, []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	list, err := client.MACs()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(list)
	}
	w := c.table("PORT\tVLAN\tVNI\tMAC\tAGE\tREMOTE")
	for _, m := range list {
		vni, remote := "-", "-"
		if m.VNI != nil {
			vni = strconv.FormatUint(uint64(*m.VNI), 10)
		}
		if m.Remote != "" {
			remote = m.Remote
		}
		port := m.Port
		if c.numbers {
			port = strconv.FormatUint(uint64(m.PortNumber), 10)
		}
		vlan, age := strconv.Itoa(int(m.VLAN)), fmt.Sprintf("%.0fs", m.AgeS)
		if m.Declared {
			vlan, age = "any", "declared"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", port, vlan, vni, m.MAC, age, remote)
	}
	return w.Flush()
}

func (c *command) fdbFlush(_ *cobra.Command, args []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	n, err := client.FlushMACs(optional(args))
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(n)
	}
	_, err = fmt.Fprintf(c.out, "%d addresses forgotten\n", n.Flushed)
	return err
}
