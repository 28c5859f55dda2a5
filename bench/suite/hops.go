// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weft/e2e/lab"
)

// The experiments below measure the time of one UDP datagram of 1,400 bytes. Its path has connection
// tracking, NAT, a filter and VXLAN, and ends at a veth.
//
// For Linux, it is the time of a sendto call, from the call to the vxlan device. For Weft, it is the time
// of the stages of a worker's poll, each of which is a secondary result. The time that the guest itself
// takes is not included.

// hopsSize is a length in bytes. A process behind a veth or tap sends UDP payloads of this length, and
// in the variant hopsVhost testpmd sends frames of this length. Both fit the MTU of 1,450 bytes that
// VXLAN leaves.
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
			measure: func(r *run, peer string) float64 {
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

// The variants of the experiment. In order: frames whose flow the switch has not cached, single frames,
// new connections without pauses, frames of known connections without pauses, and a vhost-user guest
// instead of a tap.
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
	hopsPort                = 10_000 // destination port of the datagrams that are no new connections
	hopsNewFlows            = 20_000 // number of connections that a run opens
	hopsSingles             = 40     // number of frames that a run sends one by one
)

// hopsFlows do the same with a frame as the iptables rules of the recordings in docs/traces.
const hopsFlows = `table=0,priority=10,udp,actions=ct(table=1,zone=7,nat)
table=0,priority=9,actions=drop
table=1,priority=10,ct_state=+trk+new,udp,actions=ct(commit,zone=7,nat(src=10.0.0.1)),output:vx
table=1,priority=10,ct_state=+trk+est,udp,actions=output:vx
`

func weftHops(r *run, variant string) float64 {
	w := newSite(r)
	guest := "weftbench-g" + r.id
	r.namespaces(guest)
	sw := new(weft)
	sw.up(r, setup{site: w, flows: func(func(int) string, string) []string { return []string{"priority=0,actions=drop"} }})
	flows := filepath.Join(r.dir, "hops.flows")
	lab.Check(os.WriteFile(flows, []byte(hopsFlows), 0o644))
	sw.do("add-port g type=tap dev=eth0 netns="+guest+" mac=02:00:00:00:00:01 mtu=1450", "add-flows "+flows)
	eventually(5*time.Second, func() { addressHops("eth0", guest) })
	return traceHops(r, w, sw, guest, flows, variant)
}

// vhostHops returns the time that each frame takes at full load. It is the inverse of the frame rate at
// the far end of the uplink.
func vhostHops(r *run) float64 {
	w := newSite(r)
	sw := new(weft)
	g := r.upWithGuests(sw, setup{site: w, flows: func(func(int) string, string) []string {
		return strings.Split(strings.TrimSpace(hopsFlows), "\n")
	}}, "txonly", hopsSize)
	g.say("start")
	time.Sleep(warmUp)
	rate := w.rate(r.length)
	parts := stagesOf(r, sw, "udp,in_port="+guestName(0), func() {})
	return r.noteParts(parts, 1/rate)
}

func addressHops(dev, netns string) {
	runCommands(nil, [][]string{
		{"ip", "-n", netns, "addr", "replace", hopsGuestIP + "/24", "dev", dev},
		{"ip", "-n", netns, "link", "set", dev, "up"},
		{"ip", "-n", netns, "neigh", "replace", hopsPeerIP, "lladdr", hopsPeerMAC, "dev", dev, "nud", "permanent"},
	})
}

// traceHops measures the time of each stage with a live trace. The trace slows the worker down. For
// frames without pauses, traceHops therefore measures the total time in a run without trace, and
// scales the stages to it.
func traceHops(r *run, w *site, sw *weft, guest, flows, variant string) float64 {
	self := lab.Must(os.Executable())
	send := func(spec sendSpec) {
		spec.Core = guestCore
		runCommands(nil, [][]string{netnsCommand(guest, self, hopsVerb, taskText(spec))})
	}
	if variant != hopsUnknown { // let the switch install the megaflows of both directions
		send(sendSpec{Count: 20, Port: hopsPort, Pause: 5 * time.Millisecond})
	}
	work := func(attempt int) {
		switch variant {
		case hopsAlone:
			send(sendSpec{Count: hopsSingles, Port: hopsPort, Pause: 2 * time.Millisecond})
		case hopsNew:
			send(sendSpec{Count: hopsNewFlows, New: true, Port: hopsPort + 1000 + attempt*hopsNewFlows})
		case hopsLater:
			send(sendSpec{Count: 10 * hopsNewFlows, Port: hopsPort})
		default:
			for i := range hopsSingles {
				sw.do("del-flows", "add-flows "+flows)
				send(sendSpec{Count: 1, Port: hopsPort + 1000 + i})
			}
		}
	}
	if variant == hopsUnknown || variant == hopsAlone {
		parts := stagesOf(r, sw, hopsTap, func() { work(0) })
		return r.noteParts(parts, 0)
	}
	total := busyOf(w, sw, func() { work(0) })
	parts := stagesOf(r, sw, hopsTap, func() { work(1) })
	return r.noteParts(parts, total)
}

// busyOf runs "work". It returns how many seconds the worker was busy for each frame that arrived at
// the far end of the uplink.
func busyOf(w *site, sw *weft, work func()) float64 {
	before := sw.worker()
	arrivedBefore := w.total()
	work()
	arrived := w.total()
	after := sw.worker()
	if arrived == arrivedBefore {
		lab.Check(errors.New("nothing reached the far end of the tunnel"))
	}
	return float64(after.BusyNS-before.BusyNS) / 1e9 / float64(arrived-arrivedBefore)
}
