// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"weft/api"
)

var (
	metricRemoteUp  = describe("tunnel_remote_up", "0 while frames to the remote are dropped (no route, no neighbour, or no uplink), or while its BFD session is down. At most 256 remotes of a port, those that are down first.", "port", "remote")
	metricBFDUp     = describe("tunnel_bfd_up", "1 while the BFD session with the remote is up. Only ports with bfd=on.", "port", "remote")
	metricBFDRx     = describe("tunnel_bfd_received_packets_total", "BFD packets of the session received from the remote.", "port", "remote")
	metricBFDTx     = describe("tunnel_bfd_sent_packets_total", "BFD packets sent to the remote.", "port", "remote")
	metricBFDReason = describe("tunnel_bfd_refused_reasons_total", "Parts of the refused BFD packets: wrong discriminators, from beyond a router, without the session's authentication, and not repeated while somebody guessed discriminators.", "port", "remote", "reason")
	metricBFDRefuse = describe("tunnel_bfd_refused_packets_total", "BFD packets from the remote that did not belong to the session or exceeded its rate.", "port", "remote")
	metricRemoteMTU = describe("tunnel_remote_mtu_bytes", "MTU of the path to the remote, outer headers included.", "port", "remote")
)

// collectRemotes sends the metrics about the remotes of a tunnel port.
func collectRemotes(metrics chan<- prometheus.Metric, p *api.Port) {
	seen := map[string]bool{} // flows may reach a remote from several local addresses
	for i := range p.Remotes {
		r := &p.Remotes[i]
		if seen[r.Address] {
			continue
		}
		seen[r.Address] = true
		metrics <- prometheus.MustNewConstMetric(metricRemoteUp, prometheus.GaugeValue, oneIf(r.State != "down"), p.Name, r.Address)
		if b := r.BFD; b != nil {
			metrics <- prometheus.MustNewConstMetric(metricBFDUp, prometheus.GaugeValue, oneIf(b.State == "up"), p.Name, r.Address)
			metrics <- prometheus.MustNewConstMetric(metricBFDRx, prometheus.CounterValue, float64(b.Received), p.Name, r.Address)
			metrics <- prometheus.MustNewConstMetric(metricBFDTx, prometheus.CounterValue, float64(b.Sent), p.Name, r.Address)
			metrics <- prometheus.MustNewConstMetric(metricBFDRefuse, prometheus.CounterValue, float64(b.Refused), p.Name, r.Address)
			for reason, n := range b.RefusedReasons {
				metrics <- prometheus.MustNewConstMetric(metricBFDReason, prometheus.CounterValue, float64(n), p.Name, r.Address, reason)
			}
		}
		if r.MTU > 0 {
			metrics <- prometheus.MustNewConstMetric(metricRemoteMTU, prometheus.GaugeValue, float64(r.MTU), p.Name, r.Address)
		}
	}
}
