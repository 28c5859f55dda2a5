package main

// families are the parts of the page, in order.
var families = []family{
	{name: "vhost", title: "Guest to guest, and to the wire", note: "pairs of vhost-user guests, frames circulating between them through one switch core: the project's own guests, which cost next to nothing, and dpdk-testpmd's (testpmd); vxlan-afxdp: from a guest into VXLAN and out by AF_XDP over a veth, counted at the far end", variants: "bytes of a frame, flows, or guests", logX: true},
	{name: "flows", title: "Flows and masks", note: "two vhost-user guests, frames both ways through one switch core; OVS raises the number of flows that its data path may hold by and by, and where a row has more than that by then (acl, 100,000 and more) it translates instead of forwarding: its figure is then no steady state", variants: "rules, or frames of the attack a second", logX: true},
	{name: "conntrack", title: "Connection tracking", note: "two vhost-user guests, frames both ways through one switch core; the same without tracking, tracked, and with source NAT. For orientation Linux: a bridge between veth pairs, raw frames one way, forwarded on one core, without iptables and with its rules that track", variants: "connections", logX: true},
	{name: "overlay", title: "iperf3 over the overlay", note: "guests in namespaces, two hosts of the switch, VXLAN between them; rules: connection tracking and NAT as in the recordings; 82599: an uplink that cannot segment inside of tunnels", variants: ""},
	{name: "latency", title: "Round trips over the overlay", note: "one request at a time between two guests; workers that spin, or sleep when there is nothing to do; bytes of a request", log: true},
	{name: "uplink", title: "The uplink alone", note: "one AF_XDP queue of a veth in copy mode, beside DPDK's net_af_xdp", variants: "bytes of a frame"},
	{name: "replica", title: "Three replicas that agree", note: "a leader and two followers agree on 10,000 requests over UDP, over the overlay of two hosts", variants: "requests at a time", log: true},
	{name: "idle", title: "Processor time with nothing to do", note: "two guests connected, no frames"},
	{name: "pauses", title: "Pauses of a worker", note: "the longest time between two passes of a worker under full load, rounded up by at most half; the machine's own pauses are among them, and alone in the bare loop, an ordinary thread that reads the clock (where flows change, beside a switch that has no frames and takes the same flows)", log: true},
	{name: "hops", title: "Where a frame's time goes", note: "a UDP datagram of 1,400 bytes, tracked, translated, filtered, into VXLAN and out of a veth. Weft: from the tap or the vhost ring on, by its own clock. Linux: all of sendto; what it spends in application, system-call entry and socket is the guest's own beside Weft"},
}
