// SPDX-License-Identifier: Apache-2.0

package main

import "time"

// experiment is one row of the report. It is measured for each of the switches in "peers".
type experiment struct {
	name            string   // unique name of the form family/variant
	unit            string   // unit of the result, without SI prefix
	smallerIsBetter bool     // a smaller result is better
	peers           []string // the first one is weftPeer or a variant of it

	// measure runs the experiment once with the switch "peer". It panics on errors as the methods of
	// package lab do, and its caller recovers from that (lab.Attempt). Everything that it starts ends
	// when the run ends, at the latest by run.atEnd.
	measure func(r *run, peer string) float64

	note  string        // what the row measures and what it simulates; may be empty
	limit time.Duration // time limit of one run; 0: the default limit
	// session is set for rows that share the runs of a switch. For such a row, measure runs the
	// scenarios of all rows of the session, and pick takes the row's result from the run.
	session  *session
	scenario string // scenario of the session's fleet
	pick     func(t *turn) (float64, map[string]extra, error)
}

// The names of the compared switches.
const (
	weftPeer    = "weft"
	ovsPeer     = "ovs-dpdk" // Open vSwitch's userspace datapath on DPDK
	testpmdPeer = "testpmd"  // DPDK's forwarding without any look-up, as an upper limit
)

// experiments returns the experiments of all families, in the order of the report.
func experiments() []*experiment {
	var list []*experiment
	for _, family := range [][]*experiment{
		vhostFamily(),
		tunnelFamily(),
		uplinkFamily(),
		flowsFamily(),
		conntrackFamily(),
		overlayFamily(),
		latencyFamily(),
		uplinkChoiceFamily(),
		machineFamily(),
		hopsFamily(),
		idleFamily(),
		pausesFamily(),
		replicaFamily(),
		centralFamily(),
	} {
		list = append(list, family...)
	}
	return list
}

// headline names the experiments that run without the option -scenario. With five runs of each switch,
// they take about 25 minutes. All experiments together take more than an hour.
var headline = []string{
	"vhost-pair/64", "vhost-pair/1500", "vhost-flows/10000",
	"vhost-touched/64", "vhost-touched/1500", "vhost-touched-flows/20000",
	"vhost-vxlan-afxdp/64", "uplink-send/64",
	"flows-misses/100000", "flows-install-bundle/100000",
	"conntrack-established/1000",
	"overlay/tcp1", "overlay/tcp1-rules-82599-gro", "overlay/tcp1-rules-82599-nogro", "latency/spin-64",
	"hops/later frames in a row", "idle/two guests connected", "pauses/frames circulating",
	"replica/64 at a time",
}
