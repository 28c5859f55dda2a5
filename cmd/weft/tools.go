package main

import "github.com/spf13/cobra"

// toolVerbs are for an operator who looks for something.
func (c *command) toolVerbs() []*cobra.Command {
	return []*cobra.Command{c.traceVerb(), c.packetOutVerb(), c.captureVerb(), c.monitorVerb(), c.topVerb(), c.benchVerb()}
}
