// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"

	"weft/central/wire"
)

// Each change of the switch costs a revalidation of megaflows. An agent with little CPU
// time falls behind, and the messages of the hub wait. The agent then applies the
// changes of all waiting messages at once, so that it catches up.

const (
	// readAhead is the number of messages that are read before they are processed.
	readAhead = 32
	// mostPostponed limits the messages whose changes wait for the changes of the next
	// message. At the limit, the agent applies them although messages wait.
	mostPostponed = 64
)

// read reads the hub's messages until the session ends, and returns the reason.
func read(ctx context.Context, stream wire.Hub_FollowClient, w *silence, messages chan<- rawMessage) error {
	defer close(messages)
	for {
		var m rawMessage
		if err := stream.RecvMsg(&m); err != nil {
			return err
		}
		w.begin()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case messages <- m:
		}
		w.heard()
	}
}

// backlog has the work that the agent postpones while further messages wait.
type backlog struct {
	due       bool           // the pending changes are complete, and the switch may get them
	revision  *wire.Revision // newest; nil: none
	report    bool           // the hub asks for a report
	postponed int            // number of messages whose changes wait
}

func (b *backlog) complete(r *wire.Revision) {
	b.due, b.revision, b.report = true, r, b.report || r.GetReport()
}

// finish applies the pending changes to the switch. If the next message has already arrived (behind), it
// leaves them to that message's call of finish, but for at most mostPostponed messages.
func (a *Agent) finish(behind bool) {
	b := &a.backlog
	if !b.due {
		return
	}
	if b.postponed++; behind && b.postponed < mostPostponed {
		return
	}
	trouble := a.apply()
	if r := b.revision; r != nil {
		a.state.revision, a.stats.Revision = r.GetRevision(), r.GetRevision()
		if b.report {
			a.send(&wire.FromHost{Message: &wire.FromHost_Applied{Applied: &wire.Applied{Revision: r.GetRevision(),
				Trouble: cmp.Or(trouble, a.sw.Trouble())}}})
		}
	}
	*b = backlog{}
}
