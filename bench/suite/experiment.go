// SPDX-License-Identifier: Apache-2.0

package main

// experiment is one row of the report: a job that each peer does in turn.
type experiment struct {
	name  string   // family/variant, unique; -scenario selects by it
	unit  string   // unit of the figure: frames/s, bit/s, s, cycles/frame, ...; the report adds prefixes such as M
	less  bool     // a smaller figure is better
	peers []string // Weft first; a peer that cannot start here is reported as failed

	// do makes one peer do the job once and returns the figure. It ends what it
	// started, or hands it to run.atEnd, also if it fails.
	do func(r *run, peer string) (float64, error)
}

// The names of the peers.
const (
	weftPeer    = "weft"
	ovsPeer     = "ovs-dpdk" // Open vSwitch's userspace datapath on DPDK
	testpmdPeer = "testpmd"  // DPDK's forwarding without any look-up: the upper limit
)

// experiments lists every family in the order of the report.
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
		machineFamily(),
		hopsFamily(),
		idleFamily(),
		pausesFamily(),
		replicaFamily(),
	} {
		list = append(list, family...)
	}
	return list
}

// headline names the rows that run without -scenario: a row or two of each family.
// Five runs of them take about 20 minutes; all rows take more than an hour.
var headline = []string{
	"vhost-pair/64", "vhost-pair/1500", "vhost-flows/10000",
	"vhost-vxlan-afxdp/64", "uplink-send/64",
	"flows-misses/100000", "flows-install-bundle/100000",
	"conntrack-established/1000",
	"overlay/tcp1", "overlay/tcp1-rules-82599", "latency/spin-64",
	"hops/later frames in a row", "idle/two guests connected", "pauses/frames circulating",
	"replica/64 at a time",
}
