// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The experiments below measure the time of one UDP datagram of 1,400 bytes. Its path has connection
// tracking, NAT, a filter and VXLAN, and ends at a veth.
//
// For Linux, it is the time of a sendto call, from the call to the vxlan device. For Weft, it is the time
// of the stages of a worker's poll, each of which is a secondary result. The time that the guest itself
// takes is not included.

// hopsSize is the length in bytes of each UDP payload that a process behind a veth or tap sends, and of each
// frame that testpmd sends in the variant hopsVhost. Both fit the MTU of 1,450 bytes that VXLAN leaves.
const hopsSize = 1400

func hopsFamily() []*experiment {
	var list []*experiment
	for _, e := range []struct {
		variant string
		peers   []string
	}{
		{hopsUnknown, []string{weftPeer}},
		{hopsAlone, []string{weftPeer}},
		{hopsNew, []string{weftPeer, linuxPeer}},
		{hopsLater, []string{weftPeer, linuxPeer}},
		{hopsVhost, []string{weftPeer}},
	} {
		list = append(list, &experiment{name: "hops/" + e.variant, unit: "s", smallerIsBetter: true, peers: e.peers,
			measure: func(r *run, peer string) (float64, error) {
				switch {
				case peer == linuxPeer:
					return linuxHops(r, e.variant)
				case e.variant == hopsVhost:
					return vhostHops(r)
				}
				return weftHops(r, e.variant)
			}})
	}
	return list
}

// The variants of the experiment: frames whose flow the switch has not cached, single frames, frames
// without pauses (of new connections or of known ones), and a vhost-user guest instead of a tap.
const (
	hopsUnknown = "first frame, flow unknown"
	hopsAlone   = "later frame, alone"
	hopsNew     = "new connections in a row"
	hopsLater   = "later frames in a row"
	hopsVhost   = "later frames in a row, vhost guest"
)

const (
	hopsGuestIP, hopsPeerIP = "10.0.0.1", "10.0.0.2"
	hopsPeerMAC             = "02:00:00:00:00:02"
	hopsNewFlows            = 20_000 // number of connections that a run opens
	hopsSingles             = 40     // number of frames that a run sends one by one
)

// hopsFlows have the same effect as the rules of the recordings in docs/traces.
const hopsFlows = `table=0,priority=10,udp,actions=ct(table=1,zone=7,nat)
table=0,priority=9,actions=drop
table=1,priority=10,ct_state=+trk+new,udp,actions=ct(commit,zone=7,nat(src=10.0.0.1)),output:vx
table=1,priority=10,ct_state=+trk+est,udp,actions=output:vx
`

func weftHops(r *run, variant string) (float64, error) {
	w, err := newSite(r)
	if err != nil {
		return 0, err
	}
	guest := "weftbench-g" + r.id
	if err := r.namespaces(guest); err != nil {
		return 0, err
	}
	sw := new(weft)
	if err := sw.up(r, setup{site: w, flows: func(func(int) string, string) []string { return []string{"priority=0,actions=drop"} }}); err != nil {
		return 0, err
	}
	flows := filepath.Join(r.dir, "hops.flows")
	if err := os.WriteFile(flows, []byte(hopsFlows), 0o644); err != nil {
		return 0, err
	}
	if err := sw.do("add-port g type=tap dev=eth0 netns="+guest+" mac=02:00:00:00:00:01 mtu=1450", "add-flows "+flows); err != nil {
		return 0, err
	}
	if err := eventually(5*time.Second, func() error { return addressHops("eth0", guest) }); err != nil {
		return 0, err
	}
	return traceHops(r, w, sw, guest, flows, variant)
}

// vhostHops returns the time that each frame takes at full load, which is the inverse of the frame
// rate at the far end.
func vhostHops(r *run) (float64, error) {
	w, err := newSite(r)
	if err != nil {
		return 0, err
	}
	sw := new(weft)
	g, err := r.upWithGuests(sw, setup{site: w, flows: func(func(int) string, string) []string {
		return strings.Split(strings.TrimSpace(hopsFlows), "\n")
	}}, "txonly", hopsSize)
	if err != nil {
		return 0, err
	}
	g.say("start")
	time.Sleep(warmUp)
	rate, err := w.rate(r.length)
	if err != nil {
		return 0, err
	}
	parts, err := stagesOf(r, sw, "udp,in_port="+guestName(0), func() error { return nil })
	if err != nil {
		return 0, err
	}
	return r.noteParts(parts, 1/rate), nil
}

func addressHops(dev, netns string) error {
	return runCommands(nil, [][]string{
		{"ip", "-n", netns, "addr", "replace", hopsGuestIP + "/24", "dev", dev},
		{"ip", "-n", netns, "link", "set", dev, "up"},
		{"ip", "-n", netns, "neigh", "replace", hopsPeerIP, "lladdr", hopsPeerMAC, "dev", dev, "nud", "permanent"},
	})
}

// traceHops measures the time of each stage with a live trace. The trace slows the worker down. For
// frames without pauses, traceHops therefore measures the total time in a run without trace, and
// scales the stages to it.
func traceHops(r *run, w *site, sw *weft, guest, flows, variant string) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	send := func(args ...string) error {
		return runCommands(nil, [][]string{netnsCommand(guest, append([]string{self, hopsVerb, "-core", fmt.Sprint(guestCore)}, args...)...)})
	}
	if variant != hopsUnknown { // let the switch install the megaflows of both directions
		if err := send("-count", "20", "-pause", "5ms"); err != nil {
			return 0, err
		}
	}
	work := func(attempt int) error {
		switch variant {
		case hopsAlone:
			return send("-count", fmt.Sprint(hopsSingles), "-pause", "2ms")
		case hopsNew:
			return send("-count", fmt.Sprint(hopsNewFlows), "-new", "-port", fmt.Sprint(11_000+attempt*hopsNewFlows))
		case hopsLater:
			return send("-count", fmt.Sprint(10*hopsNewFlows))
		}
		for i := range hopsSingles {
			if err := sw.do("del-flows", "add-flows "+flows); err != nil {
				return err
			}
			if err := send("-port", fmt.Sprint(11_000+i)); err != nil {
				return err
			}
		}
		return nil
	}
	if variant == hopsUnknown || variant == hopsAlone {
		parts, err := stagesOf(r, sw, hopsTap, func() error { return work(0) })
		if err != nil {
			return 0, err
		}
		return r.noteParts(parts, 0), nil
	}
	total, err := busyOf(w, sw, func() error { return work(0) })
	if err != nil {
		return 0, err
	}
	parts, err := stagesOf(r, sw, hopsTap, func() error { return work(1) })
	if err != nil {
		return 0, err
	}
	return r.noteParts(parts, total), nil
}

// busyOf runs work. It returns how many seconds the worker was busy for each frame that arrived at the
// far end.
func busyOf(w *site, sw *weft, work func() error) (float64, error) {
	before, err := sw.worker()
	if err != nil {
		return 0, err
	}
	arrivedBefore, err := w.total()
	if err != nil {
		return 0, err
	}
	if err := work(); err != nil {
		return 0, err
	}
	arrived, err := w.total()
	if err != nil {
		return 0, err
	}
	after, err := sw.worker()
	if err != nil {
		return 0, err
	}
	if arrived == arrivedBefore {
		return 0, errors.New("nothing reached the far end of the tunnel")
	}
	return float64(after.BusyNS-before.BusyNS) / 1e9 / float64(arrived-arrivedBefore), nil
}
