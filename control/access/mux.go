// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"weft/api"
)

// Route describes an API route in the table of all routes.
type Route struct {
	Role Role // role that a peer needs
	// Expensive marks requests whose memory or time grows with the size of the tables.
	// Each peer may have a limited number of expensive requests in progress.
	Expensive bool
	// Stream marks routes whose response lasts as long as the client listens. Handlers
	// of these routes set their own write deadlines.
	Stream bool
	// Most is the largest number of requests in progress on this route; 0 means no
	// limit, or maxStreams for a Stream. Readers is the same limit for peers with role
	// Read; 0 means Most.
	Most, Readers int
	// Body is the size limit of the request body in bytes; 0 means SmallBody.
	Body int64
}

// Mux routes the API's requests to their handlers. A request whose route is not in the table of routes
// gets status 403.
type Mux struct {
	mux    *http.ServeMux
	table  map[string]Route
	log    *slog.Logger
	work   *Work
	bodies *Bodies
	stream *Streams
	refuse refusalLog
	routes []string // patterns with a handler
}

// Routes returns the patterns for which HandleFunc has registered a handler.
func (m *Mux) Routes() []string { return slices.Clone(m.routes) }

// ServeHTTP implements http.Handler. It applies the limits of request bodies.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Refused requests have the same body limits, because net/http reads the rest of
	// their bodies.
	b := m.bodies.limit(w, r, PeerOf(r.Context()))
	defer b.release()
	refuseSurplus(m.mux).ServeHTTP(w, r)
}

// HandleFunc registers the handler f for a pattern. If the table of routes lacks the pattern, all its
// requests are refused.
func (m *Mux) HandleFunc(pattern string, f http.HandlerFunc) {
	m.routes = append(m.routes, pattern)
	route, known := m.table[pattern]
	m.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		peer := PeerOf(r.Context())
		switch {
		case !known:
			refuse(w, http.StatusForbidden, fmt.Sprintf("%s %s: the table of roles has no row for this route, so every request is refused", r.Method, r.URL.Path))
		case peer.Role < route.Role:
			if unlogged, ok := m.refuse.due(time.Now()); ok {
				m.log.Warn("request refused", "who", peer.Name, "role", peer.Role, "method", r.Method,
					"path", shortened(r.URL.Path), "refused_unlogged", unlogged)
			}
			refuse(w, http.StatusForbidden, fmt.Sprintf("%s has the role %s, and %s %s needs %s: "+
				"run as root, or see socket-group, socket-read-group and vsock-allow of weftd",
				peer.Share, peer.Role, r.Method, r.URL.Path, route.Role))
		default:
			m.serve(w, r, pattern, &route, peer, f)
		}
	})
}

// Fallback registers the handler of all requests that no pattern matches.
func (m *Mux) Fallback(f http.HandlerFunc) { m.mux.HandleFunc("/", f) }

func (m *Mux) serve(w http.ResponseWriter, r *http.Request, pattern string, route *Route, peer Peer, f http.HandlerFunc) {
	if route.Expensive {
		done, err := m.work.begin(r.Context(), peer)
		if err != nil {
			refuse(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		defer done()
	}
	if b, ok := r.Body.(*body); ok && route.Body != 0 {
		b.limit = route.Body
	}
	if route.Stream || route.Most > 0 {
		done, err := m.stream.begin(peer, pattern, route)
		if err != nil {
			refuse(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		defer done()
	}
	if route.Stream {
		r = r.WithContext(context.WithValue(r.Context(), workKey{}, m.work))
	} else {
		w = newPaced(w)
	}
	if route.Role < Write {
		f(w, r)
		return
	}
	noted := &statusWriter{ResponseWriter: w}
	began := time.Now()
	f(noted, r)
	m.log.Info("request that may change something", "who", peer.Name, "method", r.Method, "path", r.URL.Path,
		"query", shortened(r.URL.RawQuery), "status", max(noted.status, http.StatusOK), "took", time.Since(began).Round(time.Microsecond))
}

// maxRefusalLines limits the log lines a second about refused requests. The next line
// then says how many lines were omitted.
const maxRefusalLines = 5

type refusalLog struct {
	mu       sync.Mutex
	since    time.Time
	lines    int
	unlogged int // refusals since the last line
}

// due reports whether the caller should log a refusal now. unlogged is the number of refusals since
// the last logged one.
func (l *refusalLog) due(now time.Time) (unlogged int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= time.Second {
		l.since, l.lines = now, 0
	}
	if l.lines >= maxRefusalLines {
		l.unlogged++
		return 0, false
	}
	l.lines++
	unlogged, l.unlogged = l.unlogged, 0
	return unlogged, true
}

// maxLogged is the largest number of bytes that a log line shows of a request's query.
const maxLogged = 200

func shortened(text string) string {
	if len(text) > maxLogged {
		return text[:maxLogged] + "..."
	}
	return text
}

// refuse answers a request with an error and closes its connection. net/http does not
// read the rest of the body of a closed connection.
func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Connection", "close")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Error{Error: message}) // error ignored: the client has closed the connection
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController find the wrapped ResponseWriter.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A client loses its connection if a transfer takes longer than the time patience plus one second for each
// minRate bytes. A slow client would otherwise occupy memory, and count against the limits of requests in
// progress, for a long time.
const (
	patience = 30 * time.Second
	minRate  = 1 << 20 // bytes/s
)

// pacedWriter is a ResponseWriter whose write deadline moves forward with each byte written.
type pacedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	began   time.Time // start of the response; before the first write, start of the request
	written int64
}

func newPaced(w http.ResponseWriter) *pacedWriter {
	return &pacedWriter{ResponseWriter: w, began: time.Now(), control: http.NewResponseController(w)}
}

func (w *pacedWriter) Write(p []byte) (n int, err error) {
	if w.written == 0 {
		w.began = time.Now()
	}
	for len(p) > 0 && err == nil {
		piece := p[:min(len(p), minRate)]
		w.extend()
		var k int
		k, err = w.ResponseWriter.Write(piece)
		n += k
		w.written += int64(k)
		p = p[len(piece):]
	}
	w.extend() // time for the bytes that net/http still buffers
	return n, err
}

// extend sets the write deadline. It is patience after the begin of the response, plus one second for each
// minRate bytes written so far. SetWriteDeadline fails only in tests without a connection.
func (w *pacedWriter) extend() { _ = w.control.SetWriteDeadline(due(w.began, w.written)) }

func due(began time.Time, n int64) time.Time {
	return began.Add(patience + time.Duration(n)*time.Second/minRate)
}

// Unwrap lets http.ResponseController find the wrapped ResponseWriter.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
