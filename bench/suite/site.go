// SPDX-License-Identifier: Apache-2.0

package main

// underlay is one end of a tunnel: a switch's host, its uplink, and both addresses.
type underlay struct {
	netns, dev, mac          string
	local, remote, remoteMAC string
}

// site is a switch's host with an uplink (one end of a veth pair) and a far end: a
// namespace whose device counts frames and drops them.
type site struct {
	underlay
	sink string // the far end's namespace
	*counter
}

// farEnd is the sink's end of the uplink.
const farEnd = "u2"

// newSite makes the namespaces, for one turn.
func newSite(r *run) (*site, error) {
	w := &site{sink: "weftbench-s" + r.id, underlay: underlay{netns: "weftbench-h" + r.id, dev: "u1", mac: "02:00:00:00:ff:01",
		local: "172.31.255.1", remote: "172.31.255.2", remoteMAC: "02:00:00:00:ff:02"}}
	if err := r.namespaces(w.netns, w.sink); err != nil {
		return nil, err
	}
	err := all(nil, [][]string{
		w.ip("link", "add", w.dev, "address", w.mac, "mtu", "2000", "type", "veth", "peer", "name", farEnd, "netns", w.sink, "address", w.remoteMAC, "mtu", "2000"),
		w.ip("link", "set", w.dev, "up"),
		w.ip("addr", "add", w.local+"/24", "dev", w.dev),
		w.ip("neigh", "replace", w.remote, "lladdr", w.remoteMAC, "dev", w.dev, "nud", "permanent"),
		{"ip", "-n", w.sink, "link", "set", farEnd, "up"},
	})
	if err != nil {
		return nil, err
	}
	w.counter, err = r.countAt(w.sink, farEnd)
	return w, err
}

// ip is a command of ip(8) on the host.
func (u *underlay) ip(args ...string) []string { return append([]string{"ip", "-n", u.netns}, args...) }

// host returns the namespace that a switch is started in; "" without a site: the
// suite's own.
func (w *site) host() string {
	if w == nil {
		return ""
	}
	return w.netns
}
