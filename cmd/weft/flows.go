package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"weft/api"
)

func (c *command) flowVerbs() []*cobra.Command {
	add := &cobra.Command{
		Use: "add-flow FLOW|-", Short: "add a flow, or replace that of the same match and priority", Args: words(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return c.changeBy("add", args[0]) },
	}
	addAll := &cobra.Command{
		Use: "add-flows FILE|-", Short: "add the flows of a file, all or none", Args: words(1, 1),
		RunE: c.fileVerb("add"),
	}
	replace := &cobra.Command{
		Use: "replace-flows FILE|-", Short: "make the flows of a file all there are; those that stay go on counting", Args: words(1, 1),
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
		verb.Flags().Bool("bundle", false, "as ovs-ofctl has it: everything or nothing, which weft's changes always are")
	}
	return []*cobra.Command{
		add, addAll, replace, mod, del, c.diffVerb(),
		{
			Use: "dump-flows [MATCH]", Short: "print the flows, with statistics, as ovs-ofctl does", Args: words(0, 1),
			RunE: c.dumpFlows,
		},
		{
			Use: "dump-aggregate [MATCH]", Short: "print the sums over the flows a match selects", Args: words(0, 1),
			RunE: c.dumpAggregate,
		},
		{
			Use: "dump-megaflows", Short: "print what the workers' caches hold, with statistics", Args: words(0, 0),
			RunE: c.dumpMegaflows,
		},
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

// changeBy changes flows by one text or, for -, by the lines of standard input.
func (c *command) changeBy(op, text string) error {
	if text != "-" {
		return c.changeFlows(api.ChangeFlows{Op: op, Text: text})
	}
	file, err := c.readFile(text)
	if err != nil {
		return err
	}
	return c.changeFlows(api.ChangeFlows{Op: op, Text: file, File: true})
}

// fileVerb changes flows by a file.
func (c *command) fileVerb(op string) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		text, err := c.readFile(args[0])
		if err != nil {
			return err
		}
		return c.changeFlows(api.ChangeFlows{Op: op, Text: text, File: true})
	}
}

func (c *command) changeFlows(change api.ChangeFlows) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	n, err := client.ChangeFlows(change)
	if err != nil || !c.json {
		return err
	}
	return c.printJSON(n)
}

func (c *command) readFile(name string) (string, error) {
	if name == "-" {
		text, err := io.ReadAll(c.in)
		return string(text), err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return "", usagef("%v; expected a file of flows, or - for standard input", err)
	}
	return string(text), nil
}

func (c *command) delFlows(args []string, strict bool) error {
	match, err := optional(args), error(nil)
	if strict && match == "" {
		return usagef("del-flows: a word is missing; --strict expects MATCH")
	}
	if match == "-" {
		return c.changeBy(strictly("delete", strict), match)
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	n, err := client.DelFlows(match, strict)
	if err != nil || !c.json {
		return err
	}
	return c.printJSON(n)
}

func (c *command) dumpFlows(_ *cobra.Command, args []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	flows, err := client.Flows(optional(args))
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(flows)
	}
	for _, f := range flows {
		fmt.Fprintln(c.out, f.Line)
	}
	return nil
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
