// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
)

// exitDiffer is the exit code of diff-flows if the flows differ, as in ovs-ofctl.
// Every failure of diff-flows, including wrong input, ends with the code exit.Failed.
const exitDiffer = 2

// errDiffer makes diff-flows end with the code exitDiffer and without a message.
var errDiffer = errors.New("the flows differ")

const diffHelp = `Prints the differences between the flows of two files: "-" marks flows of the first
file, "+" flows of the second. With one file, the switch's flows take the place of
the first file: the output is what replace-flows would delete and add.

Exit status: 0 if the flows are equal, 2 if they differ, 1 on an error.`

func (c *command) diffVerb() *cobra.Command {
	return c.showsPorts(&cobra.Command{
		Use: "diff-flows FILE|- [FILE]", Short: "print the differences between a file's flows and the switch's, or another file's",
		Long: diffHelp, Args: words(1, 2),
		RunE: func(_ *cobra.Command, args []string) error { return c.diffFlows(args) },
	})
}

func (c *command) diffFlows(args []string) error {
	var files [2]string
	for i, name := range args {
		var err error
		if files[i], err = c.readFile(name); err != nil {
			return errors.New(err.Error())
		}
	}
	diff := api.DiffFlows{First: files[0]}
	if len(args) == 2 {
		diff.Second = &files[1]
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	d, err := client.DiffFlows(diff)
	if err != nil {
		name, message := args[0], err.Error()
		if rest, of := strings.CutPrefix(message, "second file: "); of {
			name, message = args[1], rest
		}
		// The error must not be an *api.Refused. Its exit code would be 2, which means here that the
		// flows differ.
		return errors.New(ofFile(name, &api.Refused{Message: message}).Error())
	}
	if c.json {
		err = c.printJSON(d)
	} else {
		for _, line := range d.Lines {
			fmt.Fprintln(c.out, line)
		}
	}
	if err == nil && len(d.Lines) > 0 {
		return errDiffer
	}
	return err
}

func (c *command) dumpAggregate(_ *cobra.Command, args []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	flows, err := client.Flows(optional(args))
	if err != nil {
		return err
	}
	var sum struct {
		Packets uint64 `json:"packets"`
		Bytes   uint64 `json:"bytes"`
		Flows   int    `json:"flows"`
	}
	for i := range flows {
		sum.Packets += flows[i].Packets
		sum.Bytes += flows[i].Bytes
		sum.Flows++
	}
	if c.json {
		return c.printJSON(sum)
	}
	_, err = fmt.Fprintf(c.out, "packet_count=%d byte_count=%d flow_count=%d\n", sum.Packets, sum.Bytes, sum.Flows)
	return err
}
