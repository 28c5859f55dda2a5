// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
)

const setControllerHelp = `Makes a bridge connect to OpenFlow controllers, tcp:HOST:PORT or ssl:HOST:PORT, and to no
others. Connections to controllers that stay are kept. ssl needs weftd --openflow-certs.

The switch's state keeps the controllers. If weftd's configuration names controllers, or the
fail mode standalone, for the first bridge, change them in the configuration.`

// controllerVerbs returns the commands of ovs-vsctl(8) for a bridge's OpenFlow controllers and fail
// mode.
func (c *command) controllerVerbs() []*cobra.Command {
	change := func(bridge string, mod api.ModBridge) error {
		client, err := c.client()
		if err != nil {
			return err
		}
		b, err := client.On(bridge).ModBridge(mod)
		if err != nil || !c.json {
			return err
		}
		return c.printJSON(b)
	}
	return []*cobra.Command{
		{
			Use: "set-controller BRIDGE TARGET...", Short: "set the OpenFlow controllers of a bridge", Long: setControllerHelp, Args: words(2, -1),
			RunE: func(_ *cobra.Command, args []string) error {
				targets := strings.Split(strings.Join(args[1:], ","), ",")
				return change(args[0], api.ModBridge{Controllers: &targets})
			},
		},
		{
			Use: "get-controller BRIDGE", Short: "print the OpenFlow controllers of a bridge", Args: words(1, 1),
			RunE: func(_ *cobra.Command, args []string) error {
				return c.printOfBridge(args[0], func(b *api.Bridge) []string { return b.Controllers })
			},
		},
		{
			Use: "del-controller BRIDGE", Short: "remove the OpenFlow controllers of a bridge", Args: words(1, 1),
			RunE: func(_ *cobra.Command, args []string) error {
				return change(args[0], api.ModBridge{Controllers: &[]string{}})
			},
		},
		{
			Use: "set-fail-mode BRIDGE MODE", Short: "set what a bridge does without a controller: secure or standalone", Args: words(2, 2),
			Long: "Sets what a bridge does while it reaches none of its controllers: secure keeps to the flows,\n" +
				"standalone forwards as a learning switch.",
			RunE: func(_ *cobra.Command, args []string) error {
				return change(args[0], api.ModBridge{FailMode: args[1]})
			},
		},
		{
			Use: "get-fail-mode BRIDGE", Short: "print the fail mode of a bridge", Args: words(1, 1),
			RunE: func(_ *cobra.Command, args []string) error {
				return c.printOfBridge(args[0], func(b *api.Bridge) []string { return []string{b.FailMode} })
			},
		},
		{
			Use: "del-fail-mode BRIDGE", Short: "set the fail mode of a bridge to secure", Args: words(1, 1),
			RunE: func(_ *cobra.Command, args []string) error {
				return change(args[0], api.ModBridge{FailMode: api.FailSecure})
			},
		},
	}
}

// printOfBridge prints the lines that the function "lines" returns for the named bridge. With --json it
// prints the whole bridge.
func (c *command) printOfBridge(name string, lines func(*api.Bridge) []string) error {
	list, err := c.bridges()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(b api.Bridge) bool { return b.Name == name })
	switch {
	case i < 0:
		return exit.Usagef("%s: no such bridge; expected a name of weft list-br", name)
	case c.json:
		return c.printJSON(list[i])
	}
	for _, line := range lines(&list[i]) {
		fmt.Fprintln(c.out, line)
	}
	return nil
}
