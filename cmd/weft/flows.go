package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"weft/api"
)

func (c *command) flowVerbs() []*cobra.Command {
	change := func(verb, op, short string) *cobra.Command {
		return &cobra.Command{
			Use: verb + " FLOW", Short: short, Args: words(1, 1),
			RunE: func(_ *cobra.Command, args []string) error {
				return c.changeFlows(api.ChangeFlows{Op: op, Text: args[0]})
			},
		}
	}
	mod := change("mod-flows", "modify", "replace the actions of the flows a match selects")
	strict := mod.Flags().Bool("strict", false, "only the flow with exactly this match and priority")
	mod.RunE = func(_ *cobra.Command, args []string) error {
		op := "modify"
		if *strict {
			op = "modify-strict"
		}
		return c.changeFlows(api.ChangeFlows{Op: op, Text: args[0]})
	}
	del := &cobra.Command{
		Use: "del-flows [MATCH]", Short: "delete the flows a match selects, or all", Args: words(0, 1),
	}
	delStrict := del.Flags().Bool("strict", false, "only the flow with exactly this match and priority")
	del.RunE = func(_ *cobra.Command, args []string) error { return c.delFlows(args, *delStrict) }
	return []*cobra.Command{
		change("add-flow", "add", "add a flow, or replace that of the same match and priority"),
		{
			Use: "add-flows FILE|-", Short: "add the flows of a file, all or none", Args: words(1, 1),
			RunE: c.addFlows,
		},
		mod, del,
		{
			Use: "dump-flows [MATCH]", Short: "print the flows, with statistics, as ovs-ofctl does", Args: words(0, 1),
			RunE: c.dumpFlows,
		},
		{
			Use: "dump-megaflows", Short: "print what the workers' caches hold", Args: words(0, 0),
			RunE: c.dumpMegaflows,
		},
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

func (c *command) addFlows(_ *cobra.Command, args []string) error {
	text, err := c.readFile(args[0])
	if err != nil {
		return err
	}
	return c.changeFlows(api.ChangeFlows{Op: "add", Text: text, File: true})
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
