// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weft/central/store"
	"weft/central/wire"
)

// A host may have a port before the port is declared. A central that declares it binds it
// to this host in the same transaction (store.Store.SetWaiting), if it knows the host. Hubs
// therefore tell each other which undeclared ports their hosts have (wire.Peer.Waiting).
//
// What a hub knows of other hubs' hosts may be old or missing. The hub of the host binds
// or releases the port in any case.

const (
	// maxAnnounced limits the changes that wait for another central. At the limit,
	// further changes are dropped: declared ports are then bound in a second transaction.
	maxAnnounced = 65536
	// announcedPage is the number of ports in one message.
	announcedPage = 1000
	// maxElsewhere limits the undeclared ports at hosts of other hubs that this hub remembers. At the
	// limit, further ones are dropped.
	maxElsewhere = 65536
)

// announcer has the changes of undeclared ports that have yet to be sent to one other central.
type announcer struct {
	queue []*wire.WaitingPort
	wake  chan struct{}
}

// elsewhere records that a host has an undeclared port, and that the host is connected to the hub of
// another central.
type elsewhere struct {
	host    string // id
	central string
}

// WaitingHost returns the id of a host that already has the port which p declares, if the declaration
// lets this host have it. It returns "" if the hub knows no such host.
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

// AnnounceWaiting calls send with the undeclared ports that the hub's hosts have, and
// then with each change, until ctx or the hub ends, or send fails.
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

// announce tells the other centrals that a session's host has an undeclared port, or has
// it no more. The caller holds mu.
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

// NoteWaiting records undeclared ports of hosts that are connected to another central. ports is a message
// of the other central's call Waiting. In it, Gone marks ports that their hosts no longer have.
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

// ForgetWaiting forgets the ports that NoteWaiting has recorded for another central. The caller's call
// Waiting to this central has ended, so news of its hosts no longer arrive.
func (h *Hub) ForgetWaiting(central string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, e := range h.elsewhere {
		if e.central == central {
			delete(h.elsewhere, key)
		}
	}
}

// endWaiting forgets the host that waited for a port, which is declared now. The caller
// holds mu.
func (h *Hub) endWaiting(o *store.Object) {
	if p, ok := o.Message.(*wire.Port); ok && len(h.elsewhere) > 0 {
		delete(h.elsewhere, p.GetName())
		delete(h.elsewhere, p.GetId())
	}
}
