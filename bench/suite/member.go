// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"weft/bench/replica"
	"weft/e2e/lab"
)

// memberVerb is the argument with which this program runs a member of a replicated log (package
// replica).
const memberVerb = "member"

// memberSpec tells the process of a replica or of the client what to do.
type memberSpec struct {
	replica.Config
	Held bool // the client waits for a line of standard input before it asks
}

func runMember(args []string) {
	var spec memberSpec
	readTask(args, &spec)
	lab.Check(spec.Check())
	if spec.Held {
		spec.Hold = os.Stdin
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if spec.Member != replica.Client {
		lab.Check(replica.RunReplica(ctx, &spec.Config))
		return
	}
	sayReport(lab.Must(replica.RunClient(ctx, &spec.Config)))
}
