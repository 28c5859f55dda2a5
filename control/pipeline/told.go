// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"
	"time"

	"weft/api"
	"weft/internal/clock"
	"weft/openflow"
)

// tell reports a change of flows to the monitors. Removed flows have their final
// counts. The caller holds the lock of changes.
func (pl *Pipeline) tell(c *openflow.Changes) {
	if pl.monitors.Count() == 0 {
		return
	}
	now, list := time.Now(), slices.Concat(c.Removed, c.Modified, c.Added)
	pl.inTurns(len(list), func(i int) {
		event, r := api.EventAdded, list[i]
		switch {
		case i < len(c.Removed) && (r.Why == openflow.WhyIdle || r.Why == openflow.WhyHard):
			event = api.EventExpired
		case i < len(c.Removed):
			event = api.EventDeleted
		case i < len(c.Removed)+len(c.Modified):
			event = api.EventModified
		}
		pl.monitors.TellFlow(now, event, r, func() api.Flow { return pl.flowOf(r, clock.Monotonic(), ByName) })
	})
}
