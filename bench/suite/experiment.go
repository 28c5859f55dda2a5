// SPDX-License-Identifier: Apache-2.0

package main

// experiment is one row of the report: a measurement that is made for each peer.
type experiment struct {
	name  string   // unique name in the form family/variant; the option -scenario selects by name
	unit  string   // unit of the result without a prefix: frames/s, bit/s, s, cycles/frame, ...
	less  bool     // a smaller result is better
	peers []string // Weft is first; a peer that cannot start on this machine is reported as failed

	// do measures one peer once and returns the result. It ends everything that it
	// has started, also after an error, or registers the end with run.atEnd.
	do func(r *run, peer string) (float64, error)
}

// The names of the peers.
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

// headline has the names of the experiments that run without the option -scenario:
// one or two of each family. Five runs of them take about 20 minutes. Five runs of
// all experiments take more than an hour.
var headline = []string{
	"vhost-pair/64", "vhost-pair/1500", "vhost-flows/10000",
	"vhost-vxlan-afxdp/64", "uplink-send/64",
	"flows-misses/100000", "flows-install-bundle/100000",
	"conntrack-established/1000",
	"overlay/tcp1", "overlay/tcp1-rules-82599", "latency/spin-64",
	"hops/later frames in a row", "idle/two guests connected", "pauses/frames circulating",
	"replica/64 at a time",
}
