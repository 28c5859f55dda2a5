// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"

	"weft/conntrack"
	"weft/control/access"
	"weft/control/observe"
)

func (h *Handlers) numbers() *observe.Numbers {
	counts, replaced := h.Pipeline.Counts(), h.Engines.Replaced()
	n := &observe.Numbers{
		Show: h.Show(), TableFlows: counts.TableFlows, Refused: counts.Refused, NotLearned: counts.NotLearned, Answers: observe.Histogram(counts.Answers),
		Died: replaced.Died, WorkerHung: replaced.WorkerHung, ServerHung: replaced.ServerHung,
		Hangs: map[uint32]uint64{}, RequestsGivenUp: h.Requests.GivenUp(),
		Monitors: h.Monitors.Count(), Limits: h.limitList(h.Limits.Rows()),
	}
	if n.Show.Central != nil {
		n.GuestRequests = h.Pipeline.Leases().Counts().ByResult()
	}
	n.Captures, n.CapturesLost = h.Captures.Counts()
	for i := range n.Show.Ports {
		number := n.Show.Ports[i].Number
		n.Hangs[number] = h.Ports.Hangs(number)
	}
	h.Tracking.Read(func(m *conntrack.Memory) {
		n.Connections = &observe.ConnectionNumbers{Now: m.Count(), EventsLost: m.EventsLost(), Counters: m.Counters()}
	})
	return n
}

// patientMetrics returns the metrics handler, which fails after access.ShortTimeout if the
// daemon is busy.
func (h *Handlers) patientMetrics() http.Handler {
	return http.TimeoutHandler(observe.MetricsHandler(h.numbers), access.ShortTimeout, "weftd is busy: the metrics are not there in time\n")
}
