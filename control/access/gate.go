package access

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weft/control/limits"
)

// Limits of the connections of one listener. At a limit the oldest connection without
// a request makes room: one of the peer's own if the peer is at its share, else one of
// the heaviest holder's. If all have requests, the newcomer is refused.
const (
	// MaxConnections is for the API's unix socket.
	MaxConnections = 256
	// MaxVsockConnections is for the API over vsock.
	MaxVsockConnections = 64
	// MaxMetricsConnections is for the metrics listener.
	MaxMetricsConnections = 64
	// writersReserve is the part of a limit that only peers who may change something
	// can take.
	writersReserve = 8
	// maxRefusals bounds the connections beyond the limit that are kept only to be told
	// so. Further ones are closed without a word.
	maxRefusals = 16
)

// Gate shares out the connections of a listener: a peer holds at most as many as it
// leaves free, so one peer has half of them at most, two a third each.
type Gate struct {
	name  string // of the limit's rows
	limit int

	mu       sync.Mutex
	peers    map[string]int
	conns    map[*Conn]struct{}
	refusals int    // connections of conns beyond limit, to be told
	order    uint64 // of the next connection
	refused  uint64 // connections closed or refused for want of room
}

// NewGate makes a gate for limit connections; name is that of its rows.
func NewGate(name string, limit int) *Gate {
	return &Gate{name: name, limit: limit, peers: map[string]int{}, conns: map[*Conn]struct{}{}}
}

// Conn is a connection that a Listener has accepted.
type Conn struct {
	net.Conn
	Peer Peer
	// Refusal is what its requests are answered with; "": they are served.
	Refusal string

	gate  *Gate
	order uint64
	busy  atomic.Bool // has a request
	once  sync.Once
	after func() // when it closes; nil: nothing
}

// Close closes the connection and gives its place back.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.gate.leave(c)
		if c.after != nil {
			c.after()
		}
	})
	return err
}

// admit enters a connection. It returns nil if there is no room, not even for a
// refusal; the caller closes c then.
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

// victim is the oldest connection without a request: own, of the peer itself, else of
// the heaviest holder that has one. Caller holds mu.
func (g *Gate) victim(share string, own bool) *Conn {
	var found *Conn
	for c := range g.conns {
		if c.busy.Load() || c.Refusal != "" || own && c.Peer.Share != share {
			continue
		}
		if found == nil || g.peers[c.Peer.Share] > g.peers[found.Peer.Share] ||
			g.peers[c.Peer.Share] == g.peers[found.Peer.Share] && c.order < found.order {
			found = c
		}
	}
	return found
}

// drop takes a connection out. Caller holds mu.
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

// LimitRows is a limits.Source.
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

// Listener accepts connections through a gate.
type Listener struct {
	net.Listener
	Gate     *Gate
	Identify func(net.Conn) Peer
	// Reserve has descriptors for connections when the process has no other left; nil:
	// none.
	Reserve *Reserve

	closing sync.Once
	closed  chan struct{}
}

// Listen has a listener accept through a gate.
func Listen(l net.Listener, gate *Gate, identify func(net.Conn) Peer, reserve *Reserve) *Listener {
	return &Listener{Listener: l, Gate: gate, Identify: identify, Reserve: reserve, closed: make(chan struct{})}
}

// Close ends Accept.
func (l *Listener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// acceptPause is the first pause after a failure to accept, maxAcceptPause the longest:
// they double, so that a process without descriptors does not spin.
const (
	acceptPause    = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// Accept returns the next connection that there is room for. Errors that pass, such as
// want of descriptors or memory, are waited out.
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
		conn.after = after
		return conn, nil
	}
}
