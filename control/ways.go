package control

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/tunnel"
)

// A route of several next hops (ECMP): each is a way with a template of its own,
// which only the template of the route as a whole leads to. A connection stays on
// its way, for that is chosen by the hash that its source port comes from. A way
// whose neighbour does not answer is left out as long as there is another.

// maxWays bounds the next hops of a route that are used, the first ones.
const maxWays = 64

// way is one next hop of a route.
type way struct {
	index  int        // of the device
	next   netip.Addr // invalid: the remote itself
	weight int
}

// ways asks the kernel for the next hops of the route to remote; none if there is
// only one. Those that the kernel knows to be dead are left out.
func (u *underlay) ways(remote netip.Addr) []way {
	routes, err := u.handle.RouteGetWithOptions(remote.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 || len(routes[0].MultiPath) < 2 {
		return nil
	}
	var list []way
	for _, n := range routes[0].MultiPath {
		if n.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0 || len(list) == maxWays {
			continue
		}
		w := way{index: n.LinkIndex, weight: n.Hops + 1}
		if gw, ok := netip.AddrFromSlice(n.Gw); ok {
			w.next = gw.Unmap()
		} else if via, ok := n.Via.(*netlink.Via); ok {
			if gw, ok := netip.AddrFromSlice(via.Addr); ok {
				w.next = gw.Unmap()
			}
		}
		list = append(list, w)
	}
	return list
}

// along is the hop to remote by w instead of the one that the kernel chose as h.
func (u *underlay) along(h hop, w way, remote netip.Addr) hop {
	next := hop{index: w.index, local: h.local, next: w.next}
	if !next.next.IsValid() {
		next.next = remote
	}
	return u.neighbourOf(next, h.routeMTU)
}

// groupHop completes the way to a multicast group: nobody is to be asked for.
func (u *underlay) groupHop(h hop, r *netlink.Route) hop {
	if src, ok := netip.AddrFromSlice(r.Src); ok && !h.local.IsValid() {
		h.local = src.Unmap()
	}
	if !h.local.IsValid() {
		return hop{why: fmt.Sprintf("no source address for %s", h.next)}
	}
	group := h.next
	if h = u.neighbourOf(h, r.MTU); h.state != hopNoRoute {
		h.state, h.why, h.dstMAC = hopReady, "", groupMAC(group)
	}
	return h
}

// followWays has e lead to the ways that there are now. Members of ways that are
// gone are freed once the workers know. Caller holds mu.
func (t *tunnels) followWays(e *tunnelEntry) (gone []*tunnelEntry) {
	if routes := t.underlay.routes.Load(); e.routes != routes+1 {
		e.routes, e.ways = routes+1, nil
		if !e.remote.IsMulticast() && e.hop.state != hopNoRoute {
			e.ways = t.underlay.ways(e.remote)
		}
	}
	var members []*tunnelEntry
	for _, w := range e.ways {
		i := slices.IndexFunc(e.members, func(m *tunnelEntry) bool { return m.way == w })
		if i >= 0 {
			members = append(members, e.members[i])
			continue
		}
		m := &tunnelEntry{tunnelKey: e.tunnelKey, udpPort: e.udpPort, parent: e, way: w}
		if !t.allocate(m) {
			break
		}
		members = append(members, m)
	}
	for _, m := range e.members {
		if !slices.Contains(members, m) {
			gone = append(gone, m)
		}
	}
	e.members = members
	return gone
}

// spread makes the template of a route of several ways, and those of its ways. e
// itself is as ready as the best of them, and stale as long as one is to be asked
// for.
func (t *tunnels) spread(e *tunnelEntry, now time.Time) tunnel.Template {
	var shares []uint32
	unsettled, failed := false, true
	base := e.hop
	for _, m := range e.members {
		m.usedAt = e.usedAt
		m.hop = t.underlay.along(base, m.way, e.remote)
		t.change(m, t.settle(m, now))
		switch m.template.State {
		case tunnel.TemplateReady:
			for range m.way.weight {
				shares = append(shares, m.index)
			}
		case tunnel.TemplatePending:
			failed = false
		}
		unsettled = unsettled || m.hop.state != hopReady && m.hop.state != hopNoRoute
	}
	switch {
	case len(shares) > 0:
		if e.hop.state, e.hop.why = hopReady, ""; unsettled {
			e.hop.state = hopStale
		}
		return tunnel.Spread(shares)
	case failed:
		e.hop.state, e.hop.why = hopFailed, "no next hop to "+e.remote.String()+" answers"
		return tunnel.Template{State: tunnel.TemplateNoNeighbour}
	}
	e.hop.state = hopPending
	return tunnel.Template{State: tunnel.TemplatePending}
}
