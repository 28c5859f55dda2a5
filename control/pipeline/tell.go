// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"
	"time"

	"weft/control/change"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// Event is the kind of a change of a flow.
type Event uint8

const (
	Added Event = iota
	Modified
	Deleted
	Expired // removed by a timeout
)

// Monitors are the OpenFlow flow monitors. They get an event for each changed flow.
type Monitors interface {
	// Count returns the number of monitors. 0 means that no events are needed.
	Count() int
	// TellFlow reports a change of flow r. r is valid until TellFlow returns. The
	// caller holds Pipeline.mu for reading.
	TellFlow(now time.Time, event Event, r *ofproto.Rule, names openflow.Names)
}

// tell makes the commit report a change of flows to the monitors. The commit does so when the
// statistics of removed flows are final.
func (pl *Pipeline) tell(tx *change.Tx, flows *ofproto.Changes) {
	if pl.monitors.Count() == 0 || len(flows.Added)+len(flows.Modified)+len(flows.Removed) == 0 {
		return
	}
	c := change.State[changes](tx, pl)
	c.events = append(c.events, *flows)
	tx.At(change.Tell, pl, func() error {
		for i := range c.events {
			pl.report(tx, &c.events[i])
		}
		c.events = nil
		return nil
	})
}

// report passes a change of flows to the monitors, one event for each flow.
func (pl *Pipeline) report(tx *change.Tx, c *ofproto.Changes) {
	now, list := time.Now(), slices.Concat(c.Removed, c.Modified, c.Added)
	pl.InTurns(tx, len(list), func(i int) {
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
