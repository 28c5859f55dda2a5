// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"github.com/prometheus/client_golang/prometheus"

	"weft/api"
)

var labels = []string{"limit", "unit", "holder_kind", "holder"}

var (
	metricUsed      = prometheus.NewDesc("weft_limit_used", "Use of a shared resource by one holder.", labels, nil)
	metricGuarantee = prometheus.NewDesc("weft_limit_guaranteed", "Part of a shared resource that other holders cannot take.", labels, nil)
	metricLimit     = prometheus.NewDesc("weft_limit_max", "The most that a holder may have of a shared resource at the moment.", labels, nil)
	metricEvicted   = prometheus.NewDesc("weft_limit_evicted_total", "Entries of a holder that made room for others or for its own.", labels, nil)
	metricRefused   = prometheus.NewDesc("weft_limit_refused_total", "Requests for more of a shared resource that were refused.", labels, nil)
)

// Collect converts limit rows to metrics. A row without a limit has no metric
// weft_limit_max.
func Collect(rows []api.Limit, metrics chan<- prometheus.Metric) {
	for _, r := range rows {
		words := []string{r.Name, r.Unit, r.HolderKind, r.Holder}
		metrics <- prometheus.MustNewConstMetric(metricUsed, prometheus.GaugeValue, float64(r.Used), words...)
		metrics <- prometheus.MustNewConstMetric(metricRefused, prometheus.CounterValue, float64(r.Refused), words...)
		metrics <- prometheus.MustNewConstMetric(metricEvicted, prometheus.CounterValue, float64(r.Evicted), words...)
		if r.Guarantee != 0 {
			metrics <- prometheus.MustNewConstMetric(metricGuarantee, prometheus.GaugeValue, float64(r.Guarantee), words...)
		}
		if r.Limit != 0 {
			metrics <- prometheus.MustNewConstMetric(metricLimit, prometheus.GaugeValue, float64(r.Limit), words...)
		}
	}
}
