// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/tunnel"
)

// If a route has several next hops (ECMP), each next hop has a template of its own, a member of the
// route's template. The route's template spreads connections over the members by the hash in the outer
// source port. If only some next hops answer, it leaves out the others.

// maxNextHops limits the next hops of a route that tunnels use. Further next hops are ignored.
const maxNextHops = 64

// nextHop is one next hop of a route.
type nextHop struct {
	index   int        // index of the device
	gateway netip.Addr // invalid: the remote is the next hop
	weight  int
}

// nextHops returns the next hops of the route to the remote, except those whose device is down. If the
// route has only one next hop, it returns none.
func (k *Kernel) nextHops(remote netip.Addr) []nextHop {
	routes, err := k.handle.RouteGetWithOptions(remote.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 || len(routes[0].MultiPath) < 2 {
		return nil
	}
	var list []nextHop
	for _, n := range routes[0].MultiPath {
		if n.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0 || len(list) == maxNextHops {
			continue
		}
		w := nextHop{index: n.LinkIndex, weight: n.Hops + 1}
		if gw, ok := netip.AddrFromSlice(n.Gw); ok {
			w.gateway = gw.Unmap()
		} else if via, ok := n.Via.(*netlink.Via); ok {
			if gw, ok := netip.AddrFromSlice(via.Addr); ok {
				w.gateway = gw.Unmap()
			}
		}
		list = append(list, w)
	}
	return list
}

// hopBy returns the path to the remote through next hop w. h is the path that the kernel has
// chosen among the next hops.
func (k *Kernel) hopBy(h hop, w nextHop, remote netip.Addr) hop {
	next := hop{index: w.index, local: h.local, next: w.gateway}
	if !next.next.IsValid() {
		next.next = remote
	}
	return k.neighbourOf(next, h.routeMTU)
}

// multicastHop completes h, the path to a multicast group by route r. A group needs no
// neighbour, because its MAC address follows from its IP address.
func (k *Kernel) multicastHop(h hop, r *netlink.Route) hop {
	if src, ok := netip.AddrFromSlice(r.Src); ok && !h.local.IsValid() {
		h.local = src.Unmap()
	}
	if !h.local.IsValid() {
		return hop{reason: fmt.Sprintf("no source address for %s", h.next)}
	}
	group := h.next
	if h = k.neighbourOf(h, r.MTU); h.state != hopNoRoute {
		h.state, h.reason, h.dstMAC = hopReady, "", multicastMAC(group)
	}
	return h
}

// followNextHops makes the members of route e, one template for each next hop, match the present next
// hops. It returns the members that are no longer needed. The caller frees them when the workers have the
// new template of e. The caller holds t.mu.
func (t *Templates) followNextHops(e *entry) (removed []*entry) {
	if routes := t.kernel.routeEvents.Load(); e.routeEvents != routes+1 {
		e.routeEvents, e.nextHops = routes+1, nil
		if !e.Remote.IsMulticast() && e.hop.state != hopNoRoute {
			e.nextHops = t.kernel.nextHops(e.Remote)
		}
	}
	var members []*entry
	for _, w := range e.nextHops {
		i := slices.IndexFunc(e.members, func(m *entry) bool { return m.nextHop == w })
		if i >= 0 {
			members = append(members, e.members[i])
			continue
		}
		m := &entry{Tunnel: e.Tunnel, udpPort: e.udpPort, parent: e, nextHop: w}
		if !t.allocate(m) {
			break
		}
		members = append(members, m)
	}
	for _, m := range e.members {
		if !slices.Contains(members, m) {
			removed = append(removed, m)
		}
	}
	e.members = members
	return removed
}

// spreadTemplate builds the template of route e, which has several next hops, and the templates of its
// members, one for each next hop. If at least one member is ready, e can be used. It then counts as stale
// until the neighbours of all next hops that have a route are confirmed.
func (t *Templates) spreadTemplate(e *entry, now time.Time) tunnel.Template {
	var shares []uint32
	unsettled, failed := false, true
	base := e.hop
	for _, m := range e.members {
		m.usedAt = e.usedAt
		m.hop = t.kernel.hopBy(base, m.nextHop, e.Remote)
		t.setTemplate(m, t.hopTemplate(m, now))
		switch m.template.State {
		case tunnel.TemplateReady:
			for range m.nextHop.weight {
				shares = append(shares, m.index)
			}
		case tunnel.TemplatePending:
			failed = false
		}
		unsettled = unsettled || m.hop.state != hopReady && m.hop.state != hopNoRoute
	}
	switch {
	case len(shares) > 0:
		if e.hop.state, e.hop.reason = hopReady, ""; unsettled {
			e.hop.state = hopStale
		}
		return tunnel.Spread(shares)
	case failed:
		e.hop.state, e.hop.reason = hopFailed, "no next hop to "+e.Remote.String()+" answers"
		return tunnel.Template{State: tunnel.TemplateNoNeighbour}
	}
	e.hop.state = hopPending
	return tunnel.Template{State: tunnel.TemplatePending}
}
