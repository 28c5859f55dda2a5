// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Timeouts of the HTTP server. A peer that exceeds one loses its connection.
const (
	// headerPatience limits the time from a request's first byte, or from the start
	// of the connection, to the end of the header.
	headerPatience = 10 * time.Second
	// idlePatience limits the time that a connection stays open without a request.
	// Prometheus scrapes every 15 s to 60 s.
	idlePatience = 90 * time.Second
	// scrapePatience limits the time in which a client reads an answer of the metrics
	// listener.
	scrapePatience = 30 * time.Second
)

// Limits of a request's header in bytes, with the request line. A longer header is
// answered with status 431.
const (
	maxHeader       = 64 << 10 // the request line may contain a match
	maxScrapeHeader = 8 << 10
)

type connKey struct{}

// connOf returns the connection of a request; nil: it did not come through a
// Listener.
func connOf(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

// PeerOf returns the peer that sent a request. Without a Listener the peer is empty
// and has role None.
func PeerOf(ctx context.Context) Peer {
	if c := connOf(ctx); c != nil {
		return c.Peer
	}
	return Peer{Share: "unknown", Name: "unknown"}
}

// NewServer returns an HTTP server for the API; h is its Mux.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerPatience, IdleTimeout: idlePatience, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), ConnState: follow, ConnContext: remember,
	}
}

// NewMetricsServer returns an HTTP server that serves h to every peer.
func NewMetricsServer(h http.Handler) *http.Server {
	s := NewServer(refuseSurplus(h))
	s.MaxHeaderBytes, s.ReadTimeout, s.WriteTimeout = maxScrapeHeader, headerPatience, scrapePatience
	return s
}

// WithConn returns a context of requests that come through conn, for PeerOf.
func WithConn(ctx context.Context, conn *Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

func remember(ctx context.Context, c net.Conn) context.Context {
	conn, _ := c.(*Conn)
	return WithConn(ctx, conn)
}

// follow marks a connection as idle when it waits for a request or for the rest of a
// header; the gate may then close it.
func follow(c net.Conn, state http.ConnState) {
	if conn, ok := c.(*Conn); ok && state == http.StateIdle {
		conn.busy.Store(false)
	}
}

// refuseSurplus answers requests on connections beyond the limit with their refusal,
// and marks other connections as busy.
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
