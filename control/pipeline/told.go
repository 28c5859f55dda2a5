package pipeline

import (
	"slices"
	"time"

	"weft/api"
	"weft/internal/clock"
	"weft/openflow"
)

// tell sends monitors a change that is in force, once the last frames of removed flows
// have been counted. Caller holds change.
func (d *Pipeline) tell(c *openflow.Changes) {
	if d.monitors.Count() == 0 {
		return
	}
	now, list := time.Now(), slices.Concat(c.Removed, c.Modified, c.Added)
	d.inTurns(len(list), func(i int) {
		event, r := api.EventAdded, list[i]
		switch {
		case i < len(c.Removed) && (r.Why == openflow.WhyIdle || r.Why == openflow.WhyHard):
			event = api.EventExpired
		case i < len(c.Removed):
			event = api.EventDeleted
		case i < len(c.Removed)+len(c.Modified):
			event = api.EventModified
		}
		d.monitors.TellFlow(now, event, r, func() api.Flow { return d.flowOf(r, clock.Monotonic(), ByName) })
	})
}
