// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/cmd/exit"
)

const monitorHelp = `Prints changes as they happen, until Ctrl-C: of the flow tables (added, modified,
deleted, expired, with the reason and the flow's last counters) and of the ports
(added, deleted, and changes of state). MATCH selects flows as in dump-flows.
With --connections it prints the connections of ct() that begin (new), change state
or mark (update) or end (destroy, with the reason), up to 50,000 a second. --zone and
--events select among them.`

func (c *command) monitorVerb() *cobra.Command {
	var r api.MonitorRequest
	verb := &cobra.Command{
		Use: "monitor [MATCH]", Short: "print changes of flows, ports and connections as they happen",
		Long: monitorHelp, Args: words(0, 1),
	}
	verb.Flags().BoolVar(&r.Flows, "flows", false, "only flows")
	verb.Flags().BoolVar(&r.Ports, "ports", false, "only ports")
	verb.Flags().BoolVar(&r.Connections, "connections", false, "only connections")
	verb.Flags().StringVar(&r.Zone, "zone", "", "only connections of this zone")
	verb.Flags().StringVar(&r.Events, "events", "", "only these events of connections: new, update, destroy, separated by commas")
	verb.Flags().BoolVar(&r.Initial, "initial", false, "print the present flows and ports first")
	verb.RunE = func(cmd *cobra.Command, args []string) error {
		r.Match = optional(args)
		if r.Match != "" && (r.Ports || r.Connections) && !r.Flows {
			return exit.Usagef("monitor: %s selects flows, and --ports or --connections leaves them out", r.Match)
		}
		if r.Zone+r.Events != "" && !r.Connections {
			return exit.Usagef("monitor: --zone and --events select connections: expected --connections too")
		}
		client, err := c.client()
		if err != nil {
			return err
		}
		ctx, stop := untilSignal()
		defer stop()
		return client.Monitor(ctx, r, func() { fmt.Fprintln(cmd.ErrOrStderr(), "monitoring; Ctrl-C ends it") }, c.event)
	}
	return verb
}

func (c *command) event(e *api.Event) error {
	if c.json {
		return c.printLine(e)
	}
	what := e.Event
	switch {
	case e.Flow != nil:
		if e.Reason != "" {
			what += " (" + e.Reason + ")"
		}
		what = fmt.Sprintf("flow %s: %s", what, e.Flow.Line)
	case e.Port != nil:
		p := e.Port
		what = fmt.Sprintf("port %s %s", p.Name, what)
		if e.Event == api.EventInitial || e.Event == api.EventAdded {
			what += fmt.Sprintf(", number %d, type %s, %s", p.Number, p.Type, p.State)
		}
		if p.Detail != "" {
			what += ": " + p.Detail
		}
	case e.Connection != nil:
		if e.Reason != "" {
			what += " (" + e.Reason + ")"
		}
		what = fmt.Sprintf("connection %s: %s", what, e.Connection.Line)
	case e.Kind == api.EventLost:
		what = fmt.Sprintf("%d events were lost", e.Lost)
	}
	_, err := fmt.Fprintf(c.out, "%s %s\n", e.Time.Format(clock), what)
	return err
}
