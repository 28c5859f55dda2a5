// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"

	"weft/conntrack"
	"weft/control/access"
	"weft/control/observe"
)

func (d *Daemon) numbers() *observe.Numbers {
	counts, replaced := d.pipeline.Counts(), d.engines.Replaced()
	n := &observe.Numbers{
		Show: d.show(), TableFlows: counts.TableFlows, Refused: counts.Refused, NotLearned: counts.NotLearned, Answers: observe.Histogram(counts.Answers),
		Died: replaced.Died, WorkerHung: replaced.WorkerHung, ServerHung: replaced.ServerHung,
		Hangs: map[uint32]uint64{}, RequestsGivenUp: d.requests.GivenUp(),
		Monitors: d.monitors.Count(), Limits: d.limitList(d.limits.Rows()),
	}
	n.Captures, n.CapturesLost = d.captures.Counts()
	for i := range n.Show.Ports {
		number := n.Show.Ports[i].Number
		n.Hangs[number] = d.ports.Hangs(number)
	}
	d.tracking.Read(func(m *conntrack.Memory) {
		n.Connections = &observe.ConnectionNumbers{Now: m.Count(), EventsLost: m.EventsLost(), Counters: m.Counters()}
	})
	return n
}

// patientMetrics returns the metrics handler, with the time limit access.ShortTimeout.
func (d *Daemon) patientMetrics() http.Handler {
	return http.TimeoutHandler(observe.MetricsHandler(d.numbers), access.ShortTimeout, "weftd is busy: the metrics are not there in time\n")
}
