// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft/tunnel"
)

// The control process watches the remote endpoints that the options of tunnel ports name, so that it knows
// their state without traffic. A watched endpoint has no template until a megaflow needs one.

const (
	// maxWatched limits the watched remote endpoints of all ports. Further endpoints
	// have the state RemoteWaiting until they have a template.
	maxWatched = 4096
	// maxStates limits the states that RemotesOf returns.
	maxStates = 256
	// watchProbe is the interval at which an unconfirmed neighbour of a watched remote
	// endpoint is probed.
	watchProbe = 10 * time.Second
	// maxWatchProbes limits the probes of one refresh. Further probes wait for the next refresh.
	maxWatchProbes = 64
)

// States of a remote.
const (
	RemoteUp      = "up"
	RemoteWaiting = "waiting" // its neighbour is being resolved, or its BFD session has just begun
	RemoteDown    = "down"    // frames to it are dropped, or its BFD session is down
)

// RemoteState is the state of the path to a tunnel's remote.
type RemoteState struct {
	Remote netip.Addr
	State  string
	Reason string // reason of a state other than RemoteUp
	Device string // device of the path; "": no route, or several next hops
	// MTU is the largest IP packet on the path in bytes; 0: unknown.
	MTU int
	BFD *BFDState // nil: no session
}

// watch is a remote endpoint whose state is watched. Templates.mu guards it.
type watch struct {
	Tunnel
	state    RemoteState
	hop      hop // path to a remote that has no template; its state is hopPending until the kernel has been asked
	probedAt time.Time
	excess   bool // the remote is beyond maxWatched
}

// Watch replaces the watched remotes of all ports. The next refresh finds out their state.
func (t *Templates) Watch(remotes []Tunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := map[Tunnel]*watch{}
	for _, list := range t.watches {
		for _, w := range list {
			old[w.Tunnel] = w
		}
	}
	t.watches = map[uint32][]*watch{}
	for i, key := range remotes {
		w := old[key]
		if w == nil {
			w = &watch{Tunnel: key, hop: hop{state: hopPending, carrier: true}, state: RemoteState{Remote: key.Remote, State: RemoteWaiting, Reason: "not known yet"}}
		}
		if w.excess = i >= maxWatched; w.excess {
			w.state.State, w.state.Reason = RemoteWaiting, fmt.Sprintf("not watched: the switch has more than %d remotes", maxWatched)
		}
		t.watches[key.Port] = append(t.watches[key.Port], w)
	}
}

// refreshWatches updates the state of the watched remote endpoints. If confirmedToo is false,
// it asks the kernel only about endpoints whose neighbour is not confirmed.
func (t *Templates) refreshWatches(confirmedToo bool) {
	probed := map[neighbourKey]bool{}
	for port := range t.watchedPorts() {
		for start, more := 0, true; more; start += refreshChunk {
			more = t.refreshSomeWatches(port, start, confirmedToo, probed)
		}
	}
}

// watchedPorts returns the ports that have watched remote endpoints.
func (t *Templates) watchedPorts() map[uint32]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ports := map[uint32]bool{}
	for port := range t.watches {
		ports[port] = true
	}
	return ports
}

// refreshSomeWatches refreshes up to refreshChunk of a port's remotes, from the index start on.
// It reports whether remotes remain after them.
func (t *Templates) refreshSomeWatches(port uint32, start int, confirmedToo bool, probed map[neighbourKey]bool) (remaining bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.watches[port]
	now := time.Now()
	for i := start; i < min(start+refreshChunk, len(list)); i++ {
		w := list[i]
		before := w.state.State
		if e := t.byKey[w.Tunnel]; e != nil {
			w.state = t.stateOf(e)
		} else if !w.excess && (confirmedToo || w.hop.state != hopReady && w.hop.state != hopNoRoute) {
			t.assess(w, now, probed)
		} else {
			continue
		}
		t.logState(w, before)
	}
	return start+refreshChunk < len(list)
}

// logState logs that a remote has become RemoteDown, or is no longer RemoteDown.
func (t *Templates) logState(w *watch, oldState string) {
	if (oldState == RemoteDown) != (w.state.State == RemoteDown) {
		t.log.Info("remote of a tunnel", "port", w.Port, "remote", w.Remote, "state", w.state.State, "why", w.state.Reason)
	}
}

// assess finds out the state of a remote that has no template, and probes the remote's neighbour. "probed"
// has the neighbours that this refresh has probed.
func (t *Templates) assess(w *watch, now time.Time, probed map[neighbourKey]bool) {
	device := ""
	if w.Remote.IsMulticast() {
		device = t.encaps[w.Port].Dev
	}
	best := t.throughUplink(t.kernel.resolve(w.Local, w.Remote, device), w.Remote)
	if !w.Remote.IsMulticast() && best.local.IsValid() {
		for _, next := range t.kernel.nextHops(w.Remote) {
			if h := t.throughUplink(t.kernel.hopBy(best, next, w.Remote), w.Remote); h.usable() > best.usable() {
				best = h
			}
		}
	}
	w.hop = best
	w.state = RemoteState{Remote: w.Remote, State: best.remoteState(), Reason: best.reason, Device: best.device, MTU: best.mtu}
	key := neighbourKey{best.index, best.next}
	if best.state == hopReady || best.state == hopNoRoute || probed[key] || len(probed) >= maxWatchProbes || now.Sub(w.probedAt) < watchProbe {
		return
	}
	probed[key], w.probedAt = true, now
	if err := t.kernel.probe(&best); err != nil {
		t.log.Warn("cannot make the kernel probe a neighbour", "neighbour", best.next, "device", best.device, "error", err)
	}
}

// throughUplink checks whether the device of hop h is an uplink with carrier. If not, the returned hop has
// no route.
func (t *Templates) throughUplink(h hop, remote netip.Addr) hop {
	if h.state == hopNoRoute {
		return h
	}
	if _, is := t.uplinks[h.device]; !is {
		h.state, h.reason = hopNoRoute, noUplink(remote, h.device)
	} else if !h.carrier {
		h.state, h.reason = hopNoRoute, noCarrier(h.device)
	}
	return h
}

func noUplink(remote netip.Addr, device string) string {
	return fmt.Sprintf("the route to %s leaves through %s, which is no working uplink", remote, device)
}

// usable ranks a hop by its state: the higher the number, the likelier frames arrive through the hop.
func (h *hop) usable() int {
	return slices.Index([]hopState{hopNoRoute, hopFailed, hopPending, hopStale, hopReady}, h.state)
}

func (h *hop) remoteState() string {
	switch h.state {
	case hopReady, hopStale:
		return RemoteUp
	case hopPending:
		return RemoteWaiting
	}
	return RemoteDown
}

// stateOf returns the state of a template's remote.
func (t *Templates) stateOf(e *entry) RemoteState {
	s := RemoteState{Remote: e.Remote, State: RemoteDown, Reason: e.hop.reason, Device: e.hop.device, MTU: e.hop.mtu}
	switch e.template.State {
	case tunnel.TemplateReady:
		s.State, s.Reason = RemoteUp, ""
	case tunnel.TemplateSpread:
		s.State, s.Reason, s.Device = RemoteUp, "", ""
		for _, m := range e.members {
			s.MTU = min(s.MTU, m.hop.mtu)
		}
	case tunnel.TemplatePending:
		s.State = RemoteWaiting
	}
	if s.State != RemoteDown && s.Device != "" && !e.hop.carrier {
		s.State, s.Reason = RemoteDown, noCarrier(s.Device)
	}
	t.superviseState(e.Tunnel, &s)
	return s
}

func noCarrier(device string) string { return "device " + device + " has no carrier" }

// Summary counts a port's remotes by state.
type Summary struct {
	Up, Waiting, Down int
	// First is the address of the first remote that is down or, if none is, of the first one that is
	// waiting. Reason says why it is in this state.
	First  netip.Addr
	Reason string
}

// Watched counts the watched remote endpoints of a port.
func (t *Templates) Watched(port uint32) Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	var s Summary
	worst := RemoteUp
	for _, w := range t.watches[port] {
		switch w.state.State {
		case RemoteUp:
			s.Up++
			continue
		case RemoteWaiting:
			s.Waiting++
		default:
			s.Down++
		}
		if worst == RemoteUp || worst == RemoteWaiting && w.state.State == RemoteDown {
			worst, s.First, s.Reason = w.state.State, w.Remote, w.state.Reason
		}
	}
	return s
}

// RemotesOf returns the states of a port's remote endpoints. These are the watched
// endpoints or, if the port has none, the endpoints that have templates. Endpoints that
// are down come first. The list has at most maxStates entries; omitted is the number of
// endpoints left out.
func (t *Templates) RemotesOf(port uint32) (states []RemoteState, omitted int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.watches[port] {
		states = append(states, w.state)
	}
	if len(states) == 0 {
		for _, e := range t.byIndex {
			if e != nil && e.parent == nil && e.Port == port {
				states = append(states, t.stateOf(e))
			}
		}
	}
	slices.SortFunc(states, func(a, b RemoteState) int {
		return cmp.Or(cmp.Compare(a.State, b.State), a.Remote.Compare(b.Remote)) // "down" < "up" < "waiting"
	})
	if len(states) > maxStates {
		states, omitted = states[:maxStates], len(states)-maxStates
	}
	return states, omitted
}
