// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weft/central/store"
	"weft/central/wire"
)

// A host may have a port before the port is declared. If the central that stores the declaration knows
// this host, it binds the port in the same transaction (store.Store.SetWaiting). Therefore each central
// tells the others which undeclared ports the hosts connected to it have (wire.Peer.Waiting).
//
// This information may be old or missing. The hub to which the host is connected corrects the binding
// in any case.

const (
	// maxAnnounced limits the queued messages about undeclared ports to one other central. At the
	// limit, further ones are dropped. When such a port is declared, it is bound in a second
	// transaction.
	maxAnnounced = 65536
	// announcedPage is the largest number of ports in one message to another central.
	announcedPage = 1000
	// maxElsewhere limits the undeclared ports that this hub knows of hosts connected to other
	// centrals. At the limit, further ones are dropped.
	maxElsewhere = 65536
)

// announcer has the news about undeclared ports that are yet to be sent to one other central.
type announcer struct {
	queue []*wire.WaitingPort
	wake  chan struct{}
}

// elsewhere is a host that has an undeclared port and is connected to another central.
type elsewhere struct {
	host    string // id
	central string
}

// WaitingHost returns the id of a host that already has the port p, which is about to be declared, if
// the declaration lets this host have it. It returns "" if the hub knows no such host.
func (h *Hub) WaitingHost(p *wire.Port) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	may := func(host string) bool { return p.GetHost() == "" || p.GetHost() == host }
	for _, key := range [...]string{p.GetName(), p.GetId()} {
		attached := h.attached[key]
		for s := range attached.members() {
			if may(s.host) {
				return s.host
			}
		}
		if e := h.elsewhere[key]; e.host != "" && may(e.host) {
			return e.host
		}
	}
	return ""
}

// AnnounceWaiting sends another central the undeclared ports that the hosts connected here have, and
// then each change. It calls send for each message. It returns when ctx or the hub ends, or send fails.
func (h *Hub) AnnounceWaiting(ctx context.Context, send func(*wire.WaitingPorts) error) error {
	a := &announcer{wake: make(chan struct{}, 1)}
	h.mu.Lock()
	for key, set := range h.attached {
		for s := range set.members() {
			if h.portBy(key) == nil {
				h.announceTo(a, key, s, false)
			}
		}
	}
	h.announcers[a] = struct{}{}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.announcers, a)
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.stopping:
			return status.Error(codes.Unavailable, errStopping.Error())
		case <-a.wake:
		}
		h.mu.Lock()
		queue := a.queue
		a.queue = nil
		h.mu.Unlock()
		for len(queue) > 0 {
			n := min(len(queue), announcedPage)
			if err := send(&wire.WaitingPorts{Ports: queue[:n]}); err != nil {
				return err
			}
			queue = queue[n:]
		}
	}
}

// announce tells the other centrals that the host of a session has an undeclared port, or no longer has
// it. The caller holds mu.
func (h *Hub) announce(key string, s *session, removed bool) {
	if len(h.announcers) == 0 || h.portBy(key) != nil {
		return
	}
	for a := range h.announcers {
		h.announceTo(a, key, s, removed)
	}
}

func (h *Hub) announceTo(a *announcer, key string, s *session, removed bool) {
	if len(a.queue) >= maxAnnounced {
		h.stats.WaitingDropped++
		return
	}
	a.queue = append(a.queue, &wire.WaitingPort{Key: key, Host: s.host, Gone: removed})
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// NoteWaiting records the undeclared ports of hosts that are connected to another central. ports is
// from a message of the other central. A host no longer has a port that is marked as Gone.
func (h *Hub) NoteWaiting(central string, ports []*wire.WaitingPort) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range ports {
		e := elsewhere{p.GetHost(), central}
		switch {
		case p.GetGone():
			if h.elsewhere[p.GetKey()] == e {
				delete(h.elsewhere, p.GetKey())
			}
		case h.portBy(p.GetKey()) != nil: // declared meanwhile
		case len(h.elsewhere) >= maxElsewhere:
			h.stats.WaitingDropped++
		default:
			h.elsewhere[p.GetKey()] = e
		}
	}
}

// ForgetWaiting deletes what NoteWaiting has recorded for another central. The caller uses it when the
// connection to this central has ended, because changes then no longer arrive.
func (h *Hub) ForgetWaiting(central string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, e := range h.elsewhere {
		if e.central == central {
			delete(h.elsewhere, key)
		}
	}
}

// endWaiting deletes the record of the host that had a port before its declaration, because the port is
// declared now. The caller holds mu.
func (h *Hub) endWaiting(o *store.Object) {
	if p, ok := o.Message.(*wire.Port); ok && len(h.elsewhere) > 0 {
		delete(h.elsewhere, p.GetName())
		delete(h.elsewhere, p.GetId())
	}
}
