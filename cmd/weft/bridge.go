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
// the first word. A weftd is a single switch without a name.
var ofctlVerbs = strings.Fields("add-flow add-flows replace-flows mod-flows del-flows diff-flows dump-flows dump-aggregate " +
	"add-group add-groups mod-group del-groups dump-groups dump-group-stats add-meter mod-meter del-meters dump-meters " +
	"meter-stats mod-table dump-tables packet-out monitor trace show dump-ports fdb-show fdb-flush")

// fileVerbs are the verbs whose argument is a file name.
var fileVerbs = strings.Fields("add-flows replace-flows diff-flows add-groups")

var bareName = regexp.MustCompile(`^[A-Za-z][\w.-]*$`)

// bridgeHint returns a hint if the first argument may be a bridge name, otherwise "".
func bridgeHint(verb *cobra.Command, args []string) string {
	if len(args) == 0 || !bareName.MatchString(args[0]) || !slices.Contains(ofctlVerbs, verb.Name()) {
		return ""
	}
	return "; if " + args[0] + " is a bridge, leave it out: weftd is one switch"
}

// protocols is the value of ovs-ofctl's option -O. It accepts any version, because
// weft does not speak OpenFlow with the daemon.
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

func ofctlHabits(root *cobra.Command) {
	for _, verb := range root.Commands() {
		run := verb.RunE
		if run == nil || !slices.Contains(ofctlVerbs, verb.Name()) {
			continue
		}
		verb.Flags().VarP(protocols{}, "protocols", "O", "accepted for ovs-ofctl's sake; any OpenFlow version works")
		verb.RunE = func(cmd *cobra.Command, args []string) error {
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
