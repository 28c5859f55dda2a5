// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// portWordVerbs are the verbs whose first word is a port's name.
var portWordVerbs = []string{"del-port", "dump-ports", "fdb-flush", "limits", "routes", "capture", "port-to-br"}

// portTypes are the type= words that completion suggests for the first option of
// add-port.
var portTypes = []string{"type=vhost-user", "type=tap", "type=local", "type=uplink", "type=af_xdp", "type=af_packet",
	"type=device", "type=patch", "type=vxlan", "type=vxlan-gpe", "type=geneve"}

// completePorts makes the shell's completion suggest the ports of the running daemon.
// It suggests nothing if no daemon answers.
func (c *command) completePorts(root *cobra.Command) {
	for _, verb := range root.Commands() {
		c.completePorts(verb)
		switch {
		case slices.Contains(portWordVerbs, verb.Name()):
			verb.ValidArgsFunction = c.portNames
		case verb.Name() == "add-port":
			verb.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				if len(args) != 1 {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return portTypes, cobra.ShellCompDirectiveNoFileComp
			}
		}
	}
}

func (c *command) portNames(_ *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	client, err := c.client()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ports, err := client.Ports("")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for i := range ports {
		if strings.HasPrefix(ports[i].Name, begin) {
			names = append(names, ports[i].Name+"\t"+ports[i].Type+" "+ports[i].State)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
