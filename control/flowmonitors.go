// SPDX-License-Identifier: Apache-2.0

package control

import (
	"time"

	"weft/api"
	"weft/control/observe"
	"weft/control/ofconn"
	"weft/control/pipeline"
	"weft/control/tables"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofproto"
)

// flowMonitors passes changes of flows to weft's monitors (API) and to the monitors of the OpenFlow
// connections of the flow's bridge. It implements pipeline.Monitors.
type flowMonitors struct {
	api      *observe.Monitors
	services *ofconn.Services
}

// Count implements pipeline.Monitors. It returns how many monitors there are; without any, no event is
// made.
func (m *flowMonitors) Count() int { return m.api.Count() + m.services.CountMonitors() }

// Names of flow events in the API (flowEvents) and in OpenFlow (wireEvents). OpenFlow has no event for
// expiry.
var (
	flowEvents = [...]string{pipeline.Added: api.EventAdded, pipeline.Modified: api.EventModified,
		pipeline.Deleted: api.EventDeleted, pipeline.Expired: api.EventExpired}
	wireEvents = [...]ofp.FlowEvent{pipeline.Added: ofp.FlowAdded, pipeline.Modified: ofp.FlowModified,
		pipeline.Deleted: ofp.FlowDeleted, pipeline.Expired: ofp.FlowDeleted}
)

// TellFlow implements pipeline.Monitors. It passes a change of a flow to the monitors.
func (m *flowMonitors) TellFlow(now time.Time, event pipeline.Event, r *ofproto.Rule, names openflow.Names) {
	nowNS := clock.Monotonic()
	m.api.TellFlow(now, flowEvents[event], r, func(r *ofproto.Rule) api.Flow { return tables.DescribeFlow(r, nowNS, names) })
	m.services.TellFlow(wireEvents[event], r)
}
