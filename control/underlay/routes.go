// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
)

// States of a Route. A tunnel sends frames through routes that are reachable or stale.
const (
	RouteReachable = "reachable" // the next hop has answered
	RouteStale     = "stale"     // the next hop's MAC address needs a confirmation
	RouteWaiting   = "waiting"   // the next hop has not answered yet
	RouteFailed    = "failed"    // the next hop does not answer
	RouteNone      = "none"      // no route, or none through a working uplink
)

// Route is the path of a tunnel to a remote through one next hop.
type Route struct {
	Port          uint32 // tunnel port
	Remote        netip.Addr
	Local         netip.Addr // source address; invalid: unknown
	NextHop       netip.Addr // gateway, or the remote itself; invalid: unknown
	Device        string     // "": unknown
	MAC           string     // of the next hop; "": unknown
	MTU           int        // largest IP packet in bytes; 0: unknown
	State, Reason string     // Reason is "" if the state is RouteReachable or RouteStale
}

// Routes returns the paths of all tunnels that have a template (an outer header for the workers), and
// of the remotes that the options of tunnel ports list. The paths are sorted by port, then by remote.
// A tunnel that uses several next hops has a path for each of them.
func (t *Templates) Routes() []Route {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := []Route{}
	for _, e := range t.byIndex {
		if e != nil && len(e.members) == 0 { // the members of a route with several next hops are in byIndex, too, and stand for it
			list = append(list, routeOf(e.Tunnel, &e.hop, e.failed))
		}
	}
	for _, watches := range t.watches {
		for _, w := range watches {
			if t.byKey[w.Tunnel] != nil {
				continue
			}
			r := routeOf(w.Tunnel, &w.hop, false)
			if r.State == RouteNone || r.State == RouteWaiting {
				r.Reason = w.state.Reason
			}
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Route) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), a.Remote.Compare(b.Remote), a.NextHop.Compare(b.NextHop), cmp.Compare(a.Device, b.Device))
	})
	return list
}

// routeOf converts the hop of a tunnel to a Route. failed means that the neighbour has not answered in
// time, although the kernel still asks.
func routeOf(key Tunnel, h *hop, failed bool) Route {
	r := Route{Port: key.Port, Remote: key.Remote, Local: h.local, NextHop: h.next, Device: h.device, MTU: h.mtu, Reason: h.reason}
	if h.dstMAC != [6]byte{} {
		r.MAC = net.HardwareAddr(h.dstMAC[:]).String()
	}
	switch {
	case h.state == hopNoRoute:
		r.State = RouteNone
	case !h.carrier:
		r.State, r.Reason = RouteNone, noCarrier(h.device)
	case h.state == hopReady:
		r.State, r.Reason = RouteReachable, ""
	case h.state == hopStale:
		r.State, r.Reason = RouteStale, ""
	case failed || h.state == hopFailed:
		r.State = RouteFailed
	default:
		r.State = RouteWaiting
	}
	return r
}
