// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

// toolVerbs returns the commands that show what the switch does, such as trace and capture.
func (c *command) toolVerbs() []*cobra.Command {
	return []*cobra.Command{c.traceVerb(), c.packetOutVerb(), c.captureVerb(), c.monitorVerb(), c.topVerb(), c.benchVerb()}
}
