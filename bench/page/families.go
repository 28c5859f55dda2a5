package main

// families are the parts of the page, in its order.
var families = []family{
	{name: "vhost-vhost", title: "Guest to guest", note: "two vhost-user guests (dpdk-testpmd), frames circulating between them through one switch core", variants: "bytes of a frame"},
	{name: "vhost-vxlan-afxdp", title: "Guest to wire", note: "a vhost-user guest's frames into VXLAN and out by AF_XDP over a veth, one switch core; counted at the far end", variants: "bytes of a frame"},
	{name: "uplink-send", title: "The uplink alone, sending", note: "one AF_XDP queue of a veth in copy mode", variants: "bytes of a frame"},
	{name: "uplink-receive", title: "The uplink alone, receiving", note: "one AF_XDP queue of a veth in copy mode", variants: "bytes of a frame"},
	{name: "flows", title: "Flows and masks", note: "two vhost-user guests, frames both ways through one switch core; what the rules look at is in the row's name", variants: "rules, or frames of the attack a second"},
	{name: "hops", title: "Where a frame's time goes", note: "a UDP datagram of 1,400 bytes, tracked, translated, filtered, into VXLAN and out of a veth. Weft: from the tap or the vhost ring on, by its own clock. Linux: all of sendto; what it spends in application, system-call entry and socket is the guest's own beside Weft"},
}
