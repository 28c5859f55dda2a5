// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"weft/api"
)

var (
	metricCentralUp        = describe("central_connected", "1 while the switch has a session with weft-central.")
	metricCentralTrouble   = describe("central_trouble", "1 while the session or the last change has an error, which weft show prints.")
	metricCentralRevision  = describe("central_revision", "Newest revision of weft-central's declaration that the switch has applied.")
	metricCentralNets      = describe("central_networks", "Declared networks with a port of this switch.")
	metricCentralAddresses = describe("central_addresses", "Declared ports whose place the switch knows.")
	metricCentralQuestions = describe("central_questions_total", "Questions for addresses, by result: asked, refused because the port asked too much.", "result")
	metricCentralPulls     = describe("central_pulls_total", "Requests to send waiting addresses at once, by result: asked, answered, and questions refused because the switch asks too often.", "result")
	metricCentralRechecks  = describe("central_rechecks_total", "Addresses of large networks that were asked for again after an interruption, by result: asked, stale if the address had gone.", "result")
	metricCentralReceived  = describe("central_received_bytes_total", "Bytes of messages from weft-central.")
)

// collectCentral sends the metrics about weft-central. c is nil if the switch does not follow
// weft-central.
func collectCentral(c *api.Central, metrics chan<- prometheus.Metric) {
	if c == nil {
		return
	}
	gauge := func(desc *prometheus.Desc, v float64) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v)
	}
	gauge(metricCentralUp, oneIf(c.Connected))
	gauge(metricCentralTrouble, oneIf(c.Trouble != ""))
	gauge(metricCentralRevision, float64(c.Revision))
	gauge(metricCentralNets, float64(c.Nets))
	gauge(metricCentralAddresses, float64(c.Addresses))
	counter(metrics, metricCentralQuestions, float64(c.Asked), "asked")
	counter(metrics, metricCentralQuestions, float64(c.Refused), "refused")
	counter(metrics, metricCentralPulls, float64(c.Pulls), "asked")
	counter(metrics, metricCentralPulls, float64(c.PullsAnswered), "answered")
	counter(metrics, metricCentralPulls, float64(c.PullsRefused), "refused")
	counter(metrics, metricCentralRechecks, float64(c.Rechecks), "asked")
	counter(metrics, metricCentralRechecks, float64(c.Stale), "stale")
	counter(metrics, metricCentralReceived, float64(c.ReceivedBytes))
}
