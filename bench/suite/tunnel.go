// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// Guest to wire: a vhost-user guest's frames into VXLAN and out by AF_XDP.

func tunnelFamily() []*experiment {
	var list []*experiment
	for _, size := range []int{64, 1400} {
		list = append(list, &experiment{name: fmt.Sprintf("vhost-vxlan-afxdp/%d", size), unit: "frames/s", peers: []string{weftPeer, ovsPeer},
			do: func(r *run, peer string) (float64, error) { return measureTunnel(r, peer, size) }})
	}
	return list
}

// measureTunnel makes a guest send as fast as it can and counts the frames at the far
// end of the tunnel.
func measureTunnel(r *run, peer string, size int) (float64, error) {
	w, err := fillTunnel(r, newSwitch(peer), size)
	if err != nil {
		return 0, err
	}
	return w.rate(r.length)
}

// fillTunnel makes a guest send as fast as it can into the tunnel of a site.
func fillTunnel(r *run, sw vswitch, size int) (*site, error) {
	w, err := newSite(r)
	if err != nil {
		return nil, err
	}
	overlay := func(guest func(int) string, tunnel string) []string {
		return []string{"in_port=" + guest(0) + ",actions=output:" + tunnel}
	}
	g, err := r.upWithGuests(sw, setup{site: w, flows: overlay}, "txonly", size)
	if err != nil {
		return nil, err
	}
	g.say("start")
	time.Sleep(warmUp)
	return w, nil
}
