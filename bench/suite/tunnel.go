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

// measureTunnel has a guest send what it can and counts what arrives at the far
// end of the tunnel.
func measureTunnel(r *run, peer string, size int) (float64, error) {
	w, err := newSite(r.id)
	if err != nil {
		return 0, err
	}
	defer w.clear()
	sw := newSwitch(peer)
	defer sw.down()
	overlay := func(guest func(int) string, tunnel string) []string {
		return []string{"in_port=" + guest(0) + ",actions=output:" + tunnel}
	}
	if err := sw.up(r, setup{guests: 2, site: w, flows: overlay}); err != nil {
		return 0, err
	}
	g, err := startGuests(r, "txonly", size)
	if err != nil {
		return 0, err
	}
	defer g.stop()
	g.say("start")
	time.Sleep(warmUp)
	return w.rateAtPeer(r.length)
}
