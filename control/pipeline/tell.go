// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"
	"time"

	"weft/openflow"
	"weft/openflow/ofproto"
)

// Event is a change of a flow.
type Event uint8

const (
	Added Event = iota
	Modified
	Deleted
	Expired // removed by a timeout
)

// Monitors receive an event for each changed flow.
type Monitors interface {
	// Count returns the number of monitors. 0 means that no events are needed.
	Count() int
	// TellFlow reports a change of flow r. r is valid until TellFlow returns. The
	// caller holds Pipeline.mu for reading.
	TellFlow(now time.Time, event Event, r *ofproto.Rule, names openflow.Names)
}

// tell reports a change of flows to the monitors. The statistics of removed flows are
// final. The caller holds the configuration lock.
func (pl *Pipeline) tell(c *ofproto.Changes) {
	if pl.monitors.Count() == 0 {
		return
	}
	now, list := time.Now(), slices.Concat(c.Removed, c.Modified, c.Added)
	pl.InTurns(len(list), func(i int) {
		event, r := Added, list[i]
		switch {
		case i < len(c.Removed) && (r.Why == ofproto.WhyIdle || r.Why == ofproto.WhyHard):
			event = Expired
		case i < len(c.Removed):
			event = Deleted
		case i < len(c.Removed)+len(c.Modified):
			event = Modified
		}
		pl.monitors.TellFlow(now, event, r, pl.view.Of(r.Bridge))
	})
}
