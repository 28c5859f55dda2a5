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

// ofctlVerbs are the verbs for which ovs-ofctl and ovs-appctl expect a bridge name as
// the first word. A weftd is a single switch, which has a name only if weftd was
// started with --name.
var ofctlVerbs = strings.Fields("add-flow add-flows replace-flows mod-flows del-flows diff-flows dump-flows dump-aggregate " +
	"add-group add-groups mod-group del-groups dump-groups dump-group-stats add-meter mod-meter del-meters dump-meters " +
	"meter-stats mod-table mod-port dump-tables packet-out monitor trace show dump-ports fdb-show fdb-flush")

// fileVerbs are the verbs whose argument is a file name.
var fileVerbs = strings.Fields("add-flows replace-flows diff-flows add-groups")

var bareName = regexp.MustCompile(`^[A-Za-z][\w.-]*$`)

// bridgeHint returns a hint for the user if the first argument may be a bridge name,
// otherwise "".
func bridgeHint(verb *cobra.Command, args []string) string {
	if len(args) == 0 || !bareName.MatchString(args[0]) || !slices.Contains(ofctlVerbs, verb.Name()) {
		return ""
	}
	return "; if " + args[0] + " is a bridge, leave it out: weftd is one switch"
}

// protocols is the value of the option -O, which exists for users of ovs-ofctl. It
// accepts any version, because weft does not speak OpenFlow with the daemon.
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
		run, check := verb.RunE, verb.Args
		if run == nil || !slices.Contains(ofctlVerbs, verb.Name()) {
			continue
		}
		if check != nil {
			verb.Args = func(cmd *cobra.Command, args []string) error { return check(cmd, c.withoutName(args)) }
		}
		verb.Flags().VarP(protocols{}, "protocols", "O", "accepted for ovs-ofctl's sake; any OpenFlow version works")
		verb.RunE = func(cmd *cobra.Command, args []string) error {
			args = c.withoutName(args)
			err := run(cmd, args)
			var usage *exit.Usage
			var refused *api.Refused
			switch hint := bridgeHint(cmd, args); {
			case err == nil || hint == "" || !strings.Contains(err.Error(), args[0]):
			case errors.As(err, &usage):
				return &exit.Usage{Message: usage.Message + hint}
			case errors.As(err, &refused) && refused.Input && !slices.Contains(fileVerbs, verb.Name()):
				return &api.Refused{Message: refused.Message + hint, Input: true}
			}
			return err
		}
	}
}

// withoutName removes the switch's own name from args if it is the first word. It asks
// the daemon for the name only if that word may be a name.
func (c *command) withoutName(args []string) []string {
	if len(args) == 0 || !bareName.MatchString(args[0]) {
		return args
	}
	if c.names == nil {
		c.names = []string{}
		if client, err := c.client(); err == nil {
			list, _ := client.Bridges() // without an answer, the verb's own request reports the error
			for _, b := range list {
				c.names = append(c.names, b.Name)
			}
		}
	}
	if slices.Contains(c.names, args[0]) {
		return args[1:]
	}
	return args
}

func (c *command) bridgeVerbs() []*cobra.Command {
	return []*cobra.Command{
		{Use: "list-br", Short: "print the name of the switch, if weftd --name has given it one", Args: words(0, 0), RunE: c.listBridges},
		{Use: "br-exists NAME", Short: "end with code 2 unless the switch has this name", Args: words(1, 1), RunE: c.bridgeExists},
		{Use: "port-to-br PORT", Short: "print the name of the switch that has a port", Args: words(1, 1), RunE: c.portToBridge},
	}
}

func (c *command) listBridges(*cobra.Command, []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	list, err := client.Bridges()
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
	client, err := c.client()
	if err != nil {
		return err
	}
	list, err := client.Bridges()
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
	if _, err := client.Ports(args[0]); err != nil {
		return err
	}
	list, err := client.Bridges()
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		return exit.Usagef("%s: the switch has no name; expected weftd --name", args[0])
	case c.json:
		return c.printJSON(list[0])
	}
	fmt.Fprintln(c.out, list[0].Name)
	return nil
}
