// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"

	"github.com/spf13/cobra"
)

const dumpFlowsHelp = `Prints the flows that MATCH selects (fields, table, cookie=VALUE/MASK, out_port), or
all flows, by table and descending priority. The format is ovs-ofctl's; the verbs
that take flows can read it. --sort and --rsort sort by priority or by a field and
may be repeated. Flows that do not match the field come last.`

// sortFlag is the value of --sort or --rsort. Both options append to one list of keys, in the order of the
// command line.
type sortFlag struct {
	keys   *[]string
	prefix string
}

func (f sortFlag) String() string { return "" }
func (f sortFlag) Type() string   { return "FIELD" }
func (f sortFlag) Set(field string) error {
	*f.keys = append(*f.keys, f.prefix+field)
	return nil
}

func (c *command) dumpFlowsVerb() *cobra.Command {
	var keys []string
	verb := &cobra.Command{
		Use: "dump-flows [MATCH]", Short: "print the flows, with statistics, as ovs-ofctl does", Long: dumpFlowsHelp, Args: words(0, 1),
	}
	f := verb.Flags()
	f.Var(sortFlag{&keys, ""}, "sort", "sort by a field, or by priority, from the smallest up")
	f.Var(sortFlag{&keys, "-"}, "rsort", "the same from the largest down")
	for _, name := range []string{"sort", "rsort"} {
		f.Lookup(name).NoOptDefVal = "priority"
	}
	noStats := f.Bool("no-stats", false, "without counts and ages, and without cookies and tables of 0")
	verb.RunE = func(_ *cobra.Command, args []string) error { return c.dumpFlows(optional(args), keys, *noStats) }
	return c.showsPorts(verb)
}

func (c *command) dumpFlows(match string, keys []string, noStats bool) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	flows, err := client.Flows(match, keys...)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(flows)
	}
	for _, f := range flows {
		line := f.Line
		if noStats {
			line = statistics.ReplaceAllString(line, "")
		}
		fmt.Fprintln(c.out, line)
	}
	return nil
}

// statistics matches the parts of a flow's text that --no-stats removes: counters, ages, and a cookie
// or table of 0. Each part ends with a comma and a blank. A match field has no blank after its comma.
var statistics = regexp.MustCompile(`\b(duration|n_packets|n_bytes|idle_age|hard_age)=[0-9.]+s?, |\bcookie=0x0, |\btable=0, `)
