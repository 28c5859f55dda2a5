// SPDX-License-Identifier: Apache-2.0

package access

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weft/control/limits"
)

// Limits of the connections of one listener. At a limit, a new connection replaces an idle one, which is
// closed. If the client of the new connection has used up its quota, it loses its own oldest idle
// connection. Otherwise the client with the most connections loses its oldest idle one. If there is no
// such connection, the new one is refused.
const (
	// maxConnections is the limit of the API's unix socket.
	maxConnections = 256
	// maxVsockConnections is the limit of the API's vsock listener.
	maxVsockConnections = 64
	// maxMetricsConnections is the limit of the metrics listener.
	maxMetricsConnections = 64
	// writersReserve is the number of connections reserved for peers with role Write.
	writersReserve = 8
	// maxRefusals limits the refused connections that stay open until the client has received the reason.
	// Further refused connections are closed at once.
	maxRefusals = 16
)

// Gate divides the connections of a listener among its clients. The limit of one client is the number of
// connections that are still free. So a client that is alone gets half of all connections, and each of two
// clients gets a third.
type Gate struct {
	name  string // name of the limit in its rows
	limit int

	// mu guards the fields below. A caller of victim or drop must hold it.
	mu       sync.Mutex
	peers    map[string]int
	conns    map[*Conn]struct{}
	refusals int    // number of connections in conns that are refused
	order    uint64 // order of the next connection
	refused  uint64 // number of connections closed or refused because of a limit
}

// newGate makes a Gate for at most limit connections. name is the name of the limit that `weft show
// limits` shows.
func newGate(name string, limit int) *Gate {
	return &Gate{name: name, limit: limit, peers: map[string]int{}, conns: map[*Conn]struct{}{}}
}

// Conn is a connection that a Listener has accepted.
type Conn struct {
	net.Conn
	Peer Peer
	// Refusal is the error text that answers every request on a refused connection. It is empty if
	// requests are served.
	Refusal string

	gate    *Gate
	order   uint64
	busy    atomic.Bool // a request is in progress
	once    sync.Once
	onClose func() // function that Close calls once, or nil
}

// Close closes the connection and removes it from the gate's counts.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.gate.leave(c)
		if c.onClose != nil {
			c.onClose()
		}
	})
	return err
}

// admit adds a new connection to the gate. At a limit, it closes an idle connection to make room. If it
// may close none, the new connection gets a Refusal (an error text that answers its requests). If
// maxRefusals refused connections are open already, admit returns nil.
func (g *Gate) admit(c net.Conn, peer Peer) *Conn {
	conn := &Conn{Conn: c, Peer: peer, gate: g}
	g.mu.Lock()
	limit := g.limit
	if peer.Role < Write {
		limit -= min(writersReserve, limit/2)
	}
	full := g.served() >= limit
	ownShare := g.peers[peer.Share] >= limit-min(g.served(), limit) && g.peers[peer.Share] > 0
	var victim *Conn
	if full || ownShare {
		g.refused++
		if victim = g.victim(peer.Share, ownShare); victim != nil {
			g.drop(victim)
		}
	}
	if (full || ownShare) && victim == nil {
		if g.refusals >= maxRefusals {
			g.mu.Unlock()
			return nil
		}
		g.refusals++
		conn.Refusal = "too many connections: " + peer.Share + " has its share; close some, and try again"
	}
	g.order++
	conn.order = g.order
	g.conns[conn] = struct{}{}
	if conn.Refusal == "" {
		g.peers[peer.Share]++
	}
	g.mu.Unlock()
	if victim != nil {
		victim.Close()
	}
	return conn
}

func (g *Gate) served() int { return len(g.conns) - g.refusals }

// victim returns the idle connection that a new connection replaces, or nil if none is idle. If sameShare
// is true, this is the oldest idle one of the client that quotas know as share. Otherwise it is the oldest
// idle one of the client with the most connections. The caller closes it.
func (g *Gate) victim(share string, sameShare bool) *Conn {
	var found *Conn
	for c := range g.conns {
		if c.busy.Load() || c.Refusal != "" || sameShare && c.Peer.Share != share {
			continue
		}
		if found == nil || g.peers[c.Peer.Share] > g.peers[found.Peer.Share] ||
			g.peers[c.Peer.Share] == g.peers[found.Peer.Share] && c.order < found.order {
			found = c
		}
	}
	return found
}

// drop removes a connection from the gate's counts. It does not close the connection.
func (g *Gate) drop(c *Conn) {
	if _, in := g.conns[c]; !in {
		return
	}
	delete(g.conns, c)
	if c.Refusal != "" {
		g.refusals--
		return
	}
	if g.peers[c.Peer.Share]--; g.peers[c.Peer.Share] == 0 {
		delete(g.peers, c.Peer.Share)
	}
}

func (g *Gate) leave(c *Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(c)
}

// LimitRows emits the rows of `weft show limits` about the listener's connections: one in total, and one
// for each client.
func (g *Gate) LimitRows(emit func(limits.Row)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	used := g.served()
	emit(limits.Row{Name: g.name, Unit: "connections", Holder: limits.All(),
		Used: uint64(used), Limit: uint64(g.limit), Refused: g.refused})
	for share, has := range g.peers {
		emit(limits.Row{Name: g.name, Unit: "connections", Holder: limits.Peer(share),
			Used: uint64(has), Limit: uint64(has + (max(g.limit-used-has, 0)+1)/2)})
	}
}

// Listener accepts connections within the limits of a Gate.
type Listener struct {
	net.Listener
	Gate     *Gate
	Identify func(net.Conn) Peer
	// Reserve has spare file descriptors, so that Accept works even if the process has no free one. It may
	// be nil.
	Reserve *Reserve

	closing sync.Once
	closed  chan struct{}
}

// Listen returns a Listener that accepts connections from l.
func Listen(l net.Listener, gate *Gate, identify func(net.Conn) Peer, reserve *Reserve) *Listener {
	return &Listener{Listener: l, Gate: gate, Identify: identify, Reserve: reserve, closed: make(chan struct{})}
}

// Close closes the listener, which ends a waiting Accept.
func (l *Listener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// The pause after a failed accept begins at acceptPause, and doubles up to
// maxAcceptPause.
const (
	acceptPause    = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// Accept returns the next connection. If a limit forbids the connection, its field Refusal is set. After a
// temporary error, such as a lack of descriptors, Accept tries again.
func (l *Listener) Accept() (net.Conn, error) {
	pause := acceptPause
	for {
		c, err := l.Listener.Accept()
		var after func()
		if outOfDescriptors(err) && l.Reserve.spend() {
			if c, err = l.Listener.Accept(); err == nil {
				after = l.Reserve.refill
			} else {
				l.Reserve.refill()
			}
		}
		if err != nil {
			if !passes(err) {
				return nil, err
			}
			select {
			case <-l.closed:
				return nil, net.ErrClosed
			case <-time.After(pause):
			}
			pause = min(2*pause, maxAcceptPause)
			continue
		}
		pause = acceptPause
		conn := l.Gate.admit(c, l.Identify(c))
		if conn == nil {
			c.Close()
			if after != nil {
				after()
			}
			continue
		}
		conn.onClose = after
		return conn, nil
	}
}
