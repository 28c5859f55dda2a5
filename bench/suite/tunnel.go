// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// In the experiments below, a vhost-user guest sends into a VXLAN tunnel. The tunnel's uplink uses
// AF_XDP.

func tunnelFamily() []*experiment {
	var list []*experiment
	for _, size := range []int{64, 1400} {
		list = append(list, &experiment{name: fmt.Sprintf("vhost-vxlan-afxdp/%d", size), unit: "frames/s", peers: []string{weftPeer, ovsPeer},
			measure: func(r *run, peer string) float64 { return measureTunnel(r, peer, size) }})
	}
	return list
}

// measureTunnel returns the frames per second at the far end of the tunnel.
func measureTunnel(r *run, peer string, size int) float64 {
	w := fillTunnel(r, newSwitch(peer), size)
	return w.rate(r.length)
}

// fillTunnel starts a switch and a guest that sends as fast as it can. The returned site counts the
// frames at the far end of the tunnel.
func fillTunnel(r *run, sw vswitch, size int) *site {
	w := newSite(r)
	overlay := func(guest func(int) string, tunnel string) []string {
		return []string{"in_port=" + guest(0) + ",actions=output:" + tunnel}
	}
	g := r.upWithGuests(sw, setup{site: w, flows: overlay}, "txonly", size)
	g.say("start")
	time.Sleep(warmUp)
	return w
}
