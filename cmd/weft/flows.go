// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
)

const flowSyntax = `FLOW has ovs-ofctl's syntax: settings and a match, then actions=ACTION[,ACTION...].

Settings: table=0..254 (default 0), priority=0..65535 (default 32768), cookie=VALUE,
idle_timeout=SECONDS, hard_timeout=SECONDS, importance=0..65535, send_flow_rem, check_overlap,
reset_counts, no_packet_counts, no_byte_counts.

Match: the fields of ovs-fields(7) except packet_type and a few others, with the masks and
prerequisites of that page.

Actions, as in ovs-actions(7): a port, output, all, flood, local, in_port, normal, drop;
output(port=PORT,max_len=BYTES), enqueue, set_queue, pop_queue; set_field, load, move,
delete_field, the mod_ actions, push_vlan, strip_vlan, dec_ttl, set_tunnel, push_mpls,
pop_mpls, the set_mpls_ actions, dec_mpls_ttl, push_pbb, pop_pbb, encap, decap, dec_nsh_ttl;
check_pkt_larger(BYTES)->FIELD[BIT];
resubmit, goto_table, clone, exit, push, pop, multipath, bundle, bundle_load, sample,
write_actions, clear_actions, write_metadata; group, meter, ct, ct_clear,
learn (with fin_idle_timeout and fin_hard_timeout), controller, conjunction, note; and
fin_timeout(idle_timeout=SECONDS,hard_timeout=SECONDS): after a FIN or RST of TCP, the limits
of the flow's timeouts.
`

const addFlowHelp = flowSyntax + `
With - each line of standard input is a flow. If a line is wrong, no flow is added.
weft-flows(7), and weft help flows, have examples, groups and meters.`

func (c *command) flowVerbs() []*cobra.Command {
	add := &cobra.Command{
		Use: "add-flow FLOW|-", Short: "add a flow, or replace the one with the same match and priority", Long: addFlowHelp, Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.changeBy("add", args[0]) },
	}
	addAll := &cobra.Command{
		Use: "add-flows FILE|-", Short: "add the flows of a file, all or none", Args: words(1, 1),
		RunE: c.fileVerb("add"),
	}
	replace := &cobra.Command{
		Use: "replace-flows FILE|-", Short: "make the flows of a file the only flows; unchanged flows keep their counters", Args: words(1, 1),
		RunE: c.fileVerb("replace"),
	}
	mod := &cobra.Command{
		Use: "mod-flows FLOW|-", Short: "replace the actions of the flows a match selects", Args: words(1, 1),
	}
	modStrict := strictFlag(mod)
	mod.RunE = func(_ *cobra.Command, args []string) error {
		return c.changeBy(strictly("modify", *modStrict), args[0])
	}
	del := &cobra.Command{
		Use: "del-flows [MATCH|-]", Short: "delete the flows a match selects, or all", Args: words(0, 1),
	}
	delStrict := strictFlag(del)
	del.RunE = func(_ *cobra.Command, args []string) error { return c.delFlows(args, *delStrict) }
	for _, verb := range []*cobra.Command{add, addAll, replace, mod, del} {
		verb.Flags().Bool("bundle", false, "accepted for ovs-ofctl's sake: weft always applies all changes or none")
	}
	return []*cobra.Command{
		add, addAll, replace, mod, del, c.diffVerb(), c.dumpFlowsVerb(),
		{
			Use: "dump-aggregate [MATCH]", Short: "print the summed counters of the flows a match selects", Args: words(0, 1),
			RunE: c.dumpAggregate,
		},
		c.showsPorts(&cobra.Command{
			Use: "dump-megaflows", Short: "print the entries of the workers' caches, with statistics", Args: words(0, 0),
			RunE: c.dumpMegaflows,
		}),
	}
}

func strictFlag(verb *cobra.Command) *bool {
	return verb.Flags().Bool("strict", false, "only the flow with exactly this match and priority")
}

func strictly(op string, strict bool) string {
	if strict {
		return op + "-strict"
	}
	return op
}

// changeBy sends a change of flows to the daemon. op is the API's operation, such as add. "text" is one
// flow, or "-" for flows on standard input, one a line.
func (c *command) changeBy(op, text string) error {
	if text != "-" {
		return c.changeFlows(api.ChangeFlows{Op: op, Text: text})
	}
	return c.changeByFile(op, text)
}

func (c *command) changeByFile(op, name string) error {
	text, err := c.readFile(name)
	if err != nil {
		return err
	}
	return ofFile(name, c.changeFlows(api.ChangeFlows{Op: op, Text: text, File: true}))
}

// ofFile puts the file's name in front of an error that the daemon reports about a line of the file. It
// returns other errors unchanged.
func ofFile(name string, err error) error {
	var refused *api.Refused
	if !errors.As(err, &refused) || !strings.HasPrefix(refused.Message, "line ") {
		return err
	}
	if name == "-" {
		name = "standard input"
	}
	of := *refused
	of.Message = name + ": " + of.Message
	return &of
}

func (c *command) fileVerb(op string) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		return c.changeByFile(op, args[0])
	}
}

func (c *command) changeFlows(change api.ChangeFlows) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	n, err := client.ChangeFlows(change)
	if err != nil {
		return err
	}
	return c.printChanged(n)
}

func (c *command) printChanged(n api.FlowsChanged) error {
	if c.json {
		return c.printJSON(n)
	}
	for _, note := range n.Notes {
		fmt.Fprintf(c.errs, "weft: note: %s\n", note)
	}
	return nil
}

func (c *command) readFile(name string) (string, error) {
	if name == "-" {
		text, err := io.ReadAll(c.stdin)
		return string(text), err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return "", exit.Usagef("%v; expected a file of flows, or - for standard input", err)
	}
	return string(text), nil
}

func (c *command) delFlows(args []string, strict bool) error {
	match, err := optional(args), error(nil)
	if strict && match == "" {
		return exit.Usagef("del-flows: a word is missing; --strict expects MATCH")
	}
	if match == "-" {
		return c.changeBy(strictly("delete", strict), match)
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	n, err := client.DelFlows(match, strict)
	if err != nil {
		return err
	}
	return c.printChanged(n)
}

func (c *command) dumpMegaflows(*cobra.Command, []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	flows, err := client.Megaflows()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(flows)
	}
	return c.printMegaflows(flows)
}

func optional(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
