// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
)

// ofctlVerbs are the commands for which ovs-ofctl and ovs-appctl expect a bridge's name as the first
// argument. In weft the name is optional. Without it, the command applies to the first bridge.
var ofctlVerbs = strings.Fields("add-flow add-flows replace-flows mod-flows del-flows diff-flows dump-flows dump-aggregate " +
	"add-group add-groups mod-group del-groups dump-groups dump-group-stats add-meter mod-meter del-meters dump-meters " +
	"meter-stats queue-stats mod-table add-tlv-map del-tlv-map dump-tlv-map mod-port dump-tables packet-out monitor trace show dump-ports fdb-show fdb-flush")

// fileVerbs are those of ofctlVerbs whose first argument is a file. A file's name may look like the
// name of a bridge.
var fileVerbs = strings.Fields("add-flows replace-flows diff-flows add-groups")

var bareName = regexp.MustCompile(`^[A-Za-z][\w.-]*$`)

// bridgeHint returns the end of an error message. It explains that the first argument is no bridge of
// this switch. If the argument cannot be a bridge's name, bridgeHint returns "".
func bridgeHint(verb *cobra.Command, args []string) string {
	if len(args) == 0 || !bareName.MatchString(args[0]) || !slices.Contains(ofctlVerbs, wordOf(verb)) {
		return ""
	}
	return "; if " + args[0] + " is a bridge, leave it out: weft list-br has no bridge of this name"
}

// protocols is the value of the option -O, which users of ovs-ofctl are used to. It accepts any version and
// has no effect, because weft does not speak OpenFlow with the daemon.
type protocols struct{}

var openFlowVersions = regexp.MustCompile(`^OpenFlow1[0-5](,OpenFlow1[0-5])*$`)

func (protocols) String() string { return "" }
func (protocols) Type() string   { return "VERSION" }
func (protocols) Set(text string) error {
	if !openFlowVersions.MatchString(text) {
		return fmt.Errorf("expected a version such as OpenFlow13")
	}
	return nil
}

func (c *command) ofctlHabits(root *cobra.Command) {
	for _, verb := range root.Commands() {
		if verb.HasSubCommands() {
			c.ofctlHabits(verb)
		}
		run, check := verb.RunE, verb.Args
		if run == nil || !slices.Contains(ofctlVerbs, wordOf(verb)) {
			continue
		}
		if check != nil {
			verb.Args = func(cmd *cobra.Command, args []string) error { return check(cmd, c.withoutName(cmd, args)) }
		}
		verb.Flags().VarP(protocols{}, "protocols", "O", "accepted for ovs-ofctl's sake; any OpenFlow version works")
		verb.RunE = func(cmd *cobra.Command, args []string) error {
			args = c.withoutName(cmd, args)
			err := run(cmd, args)
			var usage *exit.Usage
			var refused *api.Refused
			switch hint := bridgeHint(cmd, args); {
			case err == nil || hint == "" || !strings.Contains(err.Error(), args[0]):
			case errors.As(err, &usage):
				return &exit.Usage{Message: usage.Message + hint}
			case errors.As(err, &refused) && refused.Input && !slices.Contains(fileVerbs, wordOf(verb)):
				return &api.Refused{Message: refused.Message + hint, Input: true}
			}
			return err
		}
	}
}

// namesLocal returns true if the first argument is a port and not a bridge. A bridge has a port LOCAL
// with the name of the bridge, so "mod-port br0 tag=5" changes this port.
func namesLocal(verb *cobra.Command, args []string) bool {
	return wordOf(verb) == "mod-port" && (len(args) == 2 || len(args) > 2 && strings.Contains(args[1], "="))
}

// withoutName removes the first argument if it is a bridge's name, and makes later requests apply to
// this bridge. If the argument may be such a name, it asks the daemon for the bridges, once.
func (c *command) withoutName(verb *cobra.Command, args []string) []string {
	if len(args) == 0 || !bareName.MatchString(args[0]) || namesLocal(verb, args) {
		return args
	}
	if c.names == nil {
		c.names = []string{}
		if client, err := c.client(); err == nil {
			list, _ := client.Bridges() // error ignored: the verb's own request will report it
			for _, b := range list {
				c.names = append(c.names, b.Name)
			}
		}
	}
	if slices.Contains(c.names, args[0]) {
		c.bridge = args[0]
		return args[1:]
	}
	return args
}

const addBridgeHelp = `Adds a bridge: a switch with its own ports, flow tables, groups, meters, learned addresses and
OpenFlow connections. All bridges of a weftd share its workers, its cache of megaflows and
its tracked connections.

weft add-port PORT type=... bridge=NAME adds a port to it. A pair of ports type=patch joins
two bridges. ovs-ofctl finds its socket NAME.mgmt beside the socket of the API. Verbs for
flows take the name as their first word, or --bridge NAME.`

func (c *command) bridgeVerbs() []*cobra.Command {
	var add api.AddBridge
	var controllers string
	var ifExists bool
	addBridge := &cobra.Command{
		Use: "add-br NAME", Short: "add a bridge", Long: addBridgeHelp, Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			add.Name = args[0]
			if controllers != "" {
				add.Controllers = strings.Split(controllers, ",")
			}
			return c.addBridge(add)
		},
	}
	f := addBridge.Flags()
	f.BoolVar(&add.MayExist, "may-exist", false, "accept a bridge of the name")
	f.StringVar(&add.DatapathID, "datapath-id", "", "number for OpenFlow, up to 16 hexadecimal digits (default: derived from the name)")
	f.StringVar(&add.FailMode, "fail-mode", api.FailSecure, "without a reachable controller: secure keeps to the flows, standalone forwards as a learning switch")
	f.StringVar(&controllers, "controller", "", "OpenFlow controllers to connect to, tcp:HOST:PORT or ssl:HOST:PORT, separated by commas")
	delBridge := &cobra.Command{
		Use: "del-br NAME", Short: "delete a bridge with its ports, flows, groups and meters", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			client, err := c.client()
			if err != nil {
				return err
			}
			return client.DelBridge(args[0], ifExists)
		},
	}
	delBridge.Flags().BoolVar(&ifExists, "if-exists", false, "accept that there is no such bridge")
	return []*cobra.Command{
		addBridge, delBridge,
		{Use: "list-br", Short: "print the names of the bridges: those of add-br, and of weftd --name", Args: words(0, 0), RunE: c.listBridges},
		{Use: "br-exists NAME", Short: "end with code 2 unless there is a bridge of the name", Args: words(1, 1), RunE: c.bridgeExists},
		{Use: "port-to-br PORT", Short: "print the name of the bridge that has a port", Args: words(1, 1), RunE: c.portToBridge},
	}
}

func (c *command) addBridge(add api.AddBridge) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	b, err := client.AddBridge(add)
	if err != nil || !c.json {
		return err
	}
	return c.printJSON(b)
}

// bridges asks the daemon for all bridges of the switch.
func (c *command) bridges() ([]api.Bridge, error) {
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	return client.Bridges()
}

func (c *command) listBridges(*cobra.Command, []string) error {
	list, err := c.bridges()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(list)
	}
	for _, b := range list {
		fmt.Fprintln(c.out, b.Name)
	}
	return nil
}

func (c *command) bridgeExists(_ *cobra.Command, args []string) error {
	list, err := c.bridges()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(b api.Bridge) bool { return b.Name == args[0] })
	switch {
	case i < 0:
		return exit.Usagef("%s: no such bridge", args[0])
	case c.json:
		return c.printJSON(list[i])
	}
	return nil
}

func (c *command) portToBridge(cmd *cobra.Command, args []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	ports, err := client.Ports(args[0])
	if err != nil {
		return err
	}
	list, err := client.Bridges()
	if err != nil {
		return err
	}
	name := ""
	if len(ports) > 0 {
		name = ports[0].Bridge
	}
	i := slices.IndexFunc(list, func(b api.Bridge) bool { return b.Name == name || b.First && name == "" })
	switch {
	case i < 0:
		return exit.Usagef("%s: its bridge has no name; expected weftd --name", args[0])
	case c.json:
		return c.printJSON(list[i])
	}
	fmt.Fprintln(c.out, list[i].Name)
	return nil
}
