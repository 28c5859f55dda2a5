// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"weft/api"
)

var (
	metricRemoteUp  = describe("tunnel_remote_up", "0 while frames to the remote are dropped: no route, no neighbour, or no uplink. Of a port's remotes the first 256, those that are down first.", "port", "remote")
	metricRemoteMTU = describe("tunnel_remote_mtu_bytes", "MTU of the path to the remote, outer headers included.", "port", "remote")
)

// collectRemotes emits the state of a vxlan port's remotes.
func collectRemotes(metrics chan<- prometheus.Metric, p *api.Port) {
	seen := map[string]bool{} // flows may reach a remote from several local addresses
	for i := range p.Remotes {
		r := &p.Remotes[i]
		if seen[r.Address] {
			continue
		}
		seen[r.Address] = true
		metrics <- prometheus.MustNewConstMetric(metricRemoteUp, prometheus.GaugeValue, oneIf(r.State != "down"), p.Name, r.Address)
		if r.MTU > 0 {
			metrics <- prometheus.MustNewConstMetric(metricRemoteMTU, prometheus.GaugeValue, float64(r.MTU), p.Name, r.Address)
		}
	}
}
