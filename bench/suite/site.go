// SPDX-License-Identifier: Apache-2.0

package main

// underlay is one end of a tunnel. It has the addresses of both ends.
type underlay struct {
	netns, dev, mac          string
	local, remote, remoteMAC string
}

// site is a switch's host. Its uplink is a veth. An XDP program at the veth's peer counts and drops
// the frames.
type site struct {
	underlay
	sink string // network namespace of the far end
	*counter
}

// farEnd is the name of the veth at the other end of the uplink.
const farEnd = "u2"

func newSite(r *run) *site {
	w := &site{sink: "weftbench-s" + r.id, underlay: underlay{netns: "weftbench-h" + r.id, dev: "u1", mac: "02:00:00:00:ff:01",
		local: "172.31.255.1", remote: "172.31.255.2", remoteMAC: "02:00:00:00:ff:02"}}
	r.namespaces(w.netns, w.sink)
	runCommands(nil, [][]string{
		w.ip("link", "add", w.dev, "address", w.mac, "mtu", "2000", "type", "veth", "peer", "name", farEnd, "netns", w.sink, "address", w.remoteMAC, "mtu", "2000"),
		w.ip("link", "set", w.dev, "up"),
		w.ip("addr", "add", w.local+"/24", "dev", w.dev),
		w.ip("neigh", "replace", w.remote, "lladdr", w.remoteMAC, "dev", w.dev, "nud", "permanent"),
		{"ip", "-n", w.sink, "link", "set", farEnd, "up"},
	})
	w.counter = r.countAt(w.sink, farEnd)
	return w
}

func (u *underlay) ip(args ...string) []string { return append([]string{"ip", "-n", u.netns}, args...) }

func (w *site) host() string {
	if w == nil {
		return ""
	}
	return w.netns
}
