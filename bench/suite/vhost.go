package main

import (
	"fmt"
)

// Guest to guest: two vhost-user guests and a switch between them.

func vhostFamily() []*experiment {
	var list []*experiment
	for _, size := range []int{64, 1500} {
		list = append(list, &experiment{name: fmt.Sprintf("vhost-testpmd/%d", size), unit: "frames/s", peers: []string{weftPeer, ovsPeer, testpmdPeer},
			do: func(r *run, peer string) (float64, error) { return measureGuests(r, peer, size, 8) }})
	}
	return list
}

// measureGuests has bursts of 32 frames circulate between testpmd's two guests.
func measureGuests(r *run, peer string, size, bursts int) (float64, error) {
	sw := newSwitch(peer)
	defer sw.down()
	if err := sw.up(r, setup{guests: 2, flows: pairFlows}); err != nil {
		return 0, err
	}
	g, err := startGuests(r, "io", size)
	if err != nil {
		return 0, err
	}
	defer g.stop()
	return g.circulate(bursts, r.length)
}

// pairFlows joins the first two guests.
func pairFlows(guest func(int) string, _ string) []string {
	return []string{"in_port=" + guest(0) + ",actions=output:" + guest(1), "in_port=" + guest(1) + ",actions=output:" + guest(0)}
}
