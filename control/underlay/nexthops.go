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

// Routes with several next hops (ECMP). Each next hop has a member template, and the
// route's template spreads frames over the member templates. The hash in the outer
// source port chooses the member, so a connection stays on its next hop. A next hop
// whose neighbour does not answer is left out as long as another next hop answers.

// maxNextHops is the limit of next hops of a route. Further next hops are ignored.
const maxNextHops = 64

// nextHop is one next hop of a route.
type nextHop struct {
	index   int        // index of the device
	gateway netip.Addr // invalid: the remote is the next hop
	weight  int
}

// nextHops asks the kernel for the next hops of the route to remote. It returns none
// if the route has only one next hop. It leaves out next hops that the kernel marks
// as dead.
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

// hopBy returns the hop to remote through next hop w. h is the hop that the kernel
// chose for the route.
func (k *Kernel) hopBy(h hop, w nextHop, remote netip.Addr) hop {
	next := hop{index: w.index, local: h.local, next: w.gateway}
	if !next.next.IsValid() {
		next.next = remote
	}
	return k.neighbourOf(next, h.routeMTU)
}

// multicastHop completes the hop to a multicast group, which needs no neighbour.
func (k *Kernel) multicastHop(h hop, r *netlink.Route) hop {
	if src, ok := netip.AddrFromSlice(r.Src); ok && !h.local.IsValid() {
		h.local = src.Unmap()
	}
	if !h.local.IsValid() {
		return hop{why: fmt.Sprintf("no source address for %s", h.next)}
	}
	group := h.next
	if h = k.neighbourOf(h, r.MTU); h.state != hopNoRoute {
		h.state, h.why, h.dstMAC = hopReady, "", multicastMAC(group)
	}
	return h
}

// followNextHops updates the members of the template entry e to the present next hops
// of the route. It returns the members of removed next hops, which the caller frees
// once the workers have the new template. The caller holds t.mu.
func (t *Templates) followNextHops(e *entry) (gone []*entry) {
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
			gone = append(gone, m)
		}
	}
	e.members = members
	return gone
}

// spreadTemplate builds the template of the entry e, whose route has several next
// hops, and the templates of the members of e. The template is ready if one member is
// ready. The hop of e is stale as long as the neighbour of any member must be probed.
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
		if e.hop.state, e.hop.why = hopReady, ""; unsettled {
			e.hop.state = hopStale
		}
		return tunnel.Spread(shares)
	case failed:
		e.hop.state, e.hop.why = hopFailed, "no next hop to "+e.Remote.String()+" answers"
		return tunnel.Template{State: tunnel.TemplateNoNeighbour}
	}
	e.hop.state = hopPending
	return tunnel.Template{State: tunnel.TemplatePending}
}
