package access

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Deadlines of the HTTP side. A peer that exceeds one loses its connection.
const (
	// headerPatience is the time from a request's first byte, or the connection's
	// start, to the end of its header.
	headerPatience = 10 * time.Second
	// idlePatience is how long a connection stays open without a request. Prometheus
	// asks every 15 s to 60 s.
	idlePatience = 90 * time.Second
	// scrapePatience is how long an answer of metrics may take to be read.
	scrapePatience = 30 * time.Second
)

// Limits of a request's header, request line included, in bytes. A longer one is
// answered with status 431.
const (
	maxHeader       = 64 << 10 // a match is in the request line
	maxScrapeHeader = 8 << 10
)

type connKey struct{}

// connOf is the connection that a request came in on; nil: none of a Listener's.
func connOf(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

// PeerOf is the peer that a request came from. Without a Listener it is nobody, whose
// role is None.
func PeerOf(ctx context.Context) Peer {
	if c := connOf(ctx); c != nil {
		return c.Peer
	}
	return Peer{Share: "unknown", Name: "unknown"}
}

// NewServer makes a server of the API, whose handler is a Mux.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerPatience, IdleTimeout: idlePatience, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), ConnState: follow, ConnContext: remember,
	}
}

// NewMetricsServer makes a server of h, which anybody who reaches it may ask.
func NewMetricsServer(h http.Handler) *http.Server {
	s := NewServer(refuseSurplus(h))
	s.MaxHeaderBytes, s.ReadTimeout, s.WriteTimeout = maxScrapeHeader, headerPatience, scrapePatience
	return s
}

// WithPeer is a context as of a request of that peer: for handlers that are called
// without a Listener.
func WithPeer(ctx context.Context, peer Peer) context.Context {
	return context.WithValue(ctx, connKey{}, &Conn{Peer: peer})
}

func remember(ctx context.Context, c net.Conn) context.Context {
	conn, _ := c.(*Conn)
	return context.WithValue(ctx, connKey{}, conn)
}

// follow notes that a connection waits for its next request: the gate may close it. A
// connection whose header is still on its way waits, too.
func follow(c net.Conn, state http.ConnState) {
	if conn, ok := c.(*Conn); ok && state == http.StateIdle {
		conn.busy.Store(false)
	}
}

// refuseSurplus answers requests on connections beyond the limit, and notes that the
// other connections have a request.
func refuseSurplus(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connOf(r.Context()); c != nil {
			if c.Refusal != "" {
				refuse(w, http.StatusServiceUnavailable, c.Refusal)
				return
			}
			c.busy.Store(true)
		}
		h.ServeHTTP(w, r)
	})
}
