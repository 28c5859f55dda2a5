package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"weft/api"
)

const traceHelp = `Follows a frame through the tables and prints each table looked up, the flow
that matched, each of its actions, the megaflow that comes of it and what the
workers do with the frames it covers.

FLOW is a match without masks, as in in_port=vm1,tcp,nw_dst=10.0.0.2,tp_dst=80;
fields not named are 0. The frame is made up: nothing counts it, nothing is
learnt from it.`

func (c *command) traceVerb() *cobra.Command {
	verb := &cobra.Command{
		Use: "trace FLOW", Short: "follow a frame through the tables",
		Long: traceHelp, Args: words(1, 1),
	}
	verb.RunE = func(_ *cobra.Command, args []string) error { return c.trace(args[0]) }
	return verb
}

func (c *command) trace(flow string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	t, err := client.Trace(flow)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(t)
	}
	return printTrace(c.out, &t)
}

// printTrace writes a trace as ofproto/trace does: tables numbered, their
// actions below them, deeper ones further in.
func printTrace(out io.Writer, t *api.Trace) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Flow: %s\n\n", orAny(t.Flow))
	for i := range t.Steps {
		s := &t.Steps[i]
		in := strings.Repeat("    ", s.Depth)
		switch {
		case s.Kind == api.StepTable && s.Rule == nil:
			fmt.Fprintf(&b, "%s%2d. no match%s\n", in, s.Table, remark(s.Note))
		case s.Kind == api.StepTable:
			fmt.Fprintf(&b, "%s%2d. %s, priority %d%s%s\n", in, s.Table, orAny(s.Rule.Match), s.Rule.Priority, cookie(s.Rule.Cookie), remark(s.Note))
			if s.Rule.Actions == "drop" {
				fmt.Fprintf(&b, "%s    drop\n", in)
			}
		case s.Kind == api.StepAction:
			fmt.Fprintf(&b, "%s    %s\n", in, s.Action)
		default:
			fmt.Fprintf(&b, "%s     >> %s\n", in, s.Note)
		}
	}
	fmt.Fprintf(&b, "\nMegaflow: %s\nDatapath actions: %s\n", orAny(t.Megaflow), t.Actions)
	_, err := io.WriteString(out, b.String())
	return err
}

func orAny(match string) string {
	if match == "" {
		return "any frame"
	}
	return match
}

func cookie(c uint64) string {
	if c == 0 {
		return ""
	}
	return fmt.Sprintf(", cookie %#x", c)
}

func remark(note string) string {
	if note == "" {
		return ""
	}
	return " (" + note + ")"
}
