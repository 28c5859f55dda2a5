// SPDX-License-Identifier: Apache-2.0

package main

// families are the sections of the results page, in order.
var families = []family{
	{name: "vhost", title: "Guest to guest, and to the wire", note: "pairs of vhost-user guests on one switch core, with frames that circulate between the guests. Rows of the project's own guests, which cost next to nothing, and of dpdk-testpmd's guests (testpmd). vxlan-afxdp: from a guest into VXLAN and out of a veth through AF_XDP, counted at the far end", variants: "bytes of a frame, flows, or guests", logX: true},
	{name: "flows", title: "Flows and masks", note: "two vhost-user guests on one switch core, frames in both directions. OVS raises its limit of data-path flows gradually. In rows with more flows than that limit (acl, 100,000 and more) OVS translates instead of forwarding, so its figure is no steady state", variants: "rules, or frames of the attack a second", logX: true},
	{name: "conntrack", title: "Connection tracking", note: "two vhost-user guests on one switch core, frames in both directions: without tracking, tracked, and with source NAT. Linux is shown for orientation: a bridge between veth pairs forwards raw frames in one direction on one core, without iptables and with tracking rules", variants: "connections", logX: true},
	{name: "overlay", title: "iperf3 over the overlay", note: "iperf3 between guests in namespaces on two hosts of the switch, with VXLAN between the hosts. rules: connection tracking and NAT as in the recordings. 82599: an uplink that cannot segment inside tunnels", variants: ""},
	{name: "latency", title: "Round trips over the overlay", note: "one request at a time between two guests. Workers spin, or sleep when idle. The number is the size of a request in bytes", log: true},
	{name: "uplink", title: "The uplink alone", note: "one AF_XDP queue of a veth in copy mode, beside DPDK's net_af_xdp", variants: "bytes of a frame"},
	{name: "replica", title: "Three replicas that agree on requests", note: "a leader and two followers agree on 10,000 requests over UDP, over the overlay of two hosts", variants: "requests at a time", log: true},
	{name: "machines", title: "Between virtual machines", note: "iperf3 between two virtual machines on one host, under software emulation, which itself takes most of the processor time"},
	{name: "idle", title: "Processor time with nothing to do", note: "two connected guests without traffic"},
	{name: "pauses", title: "Pauses of a worker", note: "the longest time between two passes of a worker under full load, at most half too high because of rounding. It includes the machine's own pauses. The bare loop shows those alone: an ordinary thread reads the clock. If flows change, it runs beside an idle switch that takes the same flow changes", log: true},
	{name: "central", title: "weft-central with many hosts", note: "three processes of weft-central, one process with a real agent for each simulated host, and 8 real hosts (weftd in namespaces) whose guests ping each other. All of them share the two cores of the machine. A time counts only if every host has the state that an oracle computes from the declaration, and the store has all acknowledged writes. The notes below the table say what is simulated", log: true},
	{name: "hops", title: "Where a frame's time goes", note: "a UDP datagram of 1,400 bytes, tracked, translated and filtered, into VXLAN and out of a veth. Weft's time starts at the tap or the vhost ring, by Weft's own clock. Linux's time is all of sendto. Its parts application, system-call entry and socket belong to the guest in Weft's case"},
}
