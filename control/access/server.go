// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Timeouts of the HTTP server. A peer that exceeds a timeout loses its connection.
const (
	// headerPatience limits the time until the end of a request's header. The time begins with the
	// connection or, for a later request, with the header's first byte.
	headerPatience = 10 * time.Second
	// idlePatience limits the time between two requests. Prometheus scrapes every 15
	// s to 60 s.
	idlePatience = 90 * time.Second
	// scrapePatience limits the time that a client of the metrics listener may take to
	// read a response.
	scrapePatience = 30 * time.Second
)

// Limits of a request's header in bytes, including the request line. A request with a longer header
// gets status 431.
const (
	maxHeader       = 64 << 10 // the request line may contain a match
	maxScrapeHeader = 8 << 10
)

type connKey struct{}

// connOf returns the connection of a request. It returns nil for a connection that no
// Listener accepted.
func connOf(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

// PeerOf returns the peer that sent a request. The role of the peer is None if no
// Listener accepted the connection.
func PeerOf(ctx context.Context) Peer {
	if c := connOf(ctx); c != nil {
		return c.Peer
	}
	return Peer{Share: "unknown", Name: "unknown"}
}

// newServer returns an HTTP server for the API, whose handler h is a Mux.
func newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerPatience, IdleTimeout: idlePatience, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), ConnState: follow, ConnContext: remember,
	}
}

// newMetricsServer returns an HTTP server that serves h to every peer, whatever its role.
func newMetricsServer(h http.Handler) *http.Server {
	s := newServer(refuseSurplus(h))
	s.MaxHeaderBytes, s.ReadTimeout, s.WriteTimeout = maxScrapeHeader, headerPatience, scrapePatience
	return s
}

// WithConn returns a context in which PeerOf returns the peer of conn.
func WithConn(ctx context.Context, conn *Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

func remember(ctx context.Context, c net.Conn) context.Context {
	conn, _ := c.(*Conn)
	return WithConn(ctx, conn)
}

func follow(c net.Conn, state http.ConnState) {
	if conn, ok := c.(*Conn); ok && state == http.StateIdle {
		conn.busy.Store(false)
	}
}

// refuseSurplus returns a handler that answers every request on a refused connection with the connection's
// error text (Refusal). It passes all other requests to h.
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
