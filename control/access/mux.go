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

// Route is the row of an API route in the table of all routes.
type Route struct {
	Role Role // that a peer needs
	// Expensive requests take memory or time that grows with the tables; a peer has a
	// share of those at work.
	Expensive bool
	// Stream answers go on for as long as the client listens, and set the deadlines of
	// their writes themselves.
	Stream bool
	// Most is the most requests at once; 0: not counted, or for a Stream as MaxStreams
	// allows. Readers is the most of peers who may only look; 0: as all others.
	Most, Readers int
	// Body is the most bytes that a request may have; 0: SmallBody.
	Body int64
}

// Mux routes the API's requests. A pattern without a row in the table is answered with
// 403, whoever asks.
type Mux struct {
	mux    *http.ServeMux
	table  map[string]Route
	log    *slog.Logger
	work   *Work
	bodies *Bodies
	stream *Streams
	refuse refusalLog
	routes []string // patterns handled
}

// Routes are the patterns that have a handler.
func (m *Mux) Routes() []string { return slices.Clone(m.routes) }

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Before anything is answered: net/http reads what a handler leaves of a body, and
	// would wait for it for ever.
	b := m.bodies.limit(w, r, PeerOf(r.Context()))
	defer b.release()
	refuseSurplus(m.mux).ServeHTTP(w, r)
}

// HandleFunc has f answer the requests of a pattern of the table.
func (m *Mux) HandleFunc(pattern string, f http.HandlerFunc) {
	m.routes = append(m.routes, pattern)
	route, known := m.table[pattern]
	m.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		peer := PeerOf(r.Context())
		switch {
		case !known:
			refuse(w, http.StatusForbidden, fmt.Sprintf("%s %s: the request has no role", r.Method, r.URL.Path))
		case peer.Role < route.Role:
			if unlogged, ok := m.refuse.next(time.Now()); ok {
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

// Fallback answers what no pattern of the table matches.
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

// maxRefusalLines bounds the lines of the log about refused requests in a second: a
// peer without a role must not fill it. Further requests are counted in a later line.
const maxRefusalLines = 5

// refusalLog knows how many lines there were lately.
type refusalLog struct {
	mu       sync.Mutex
	since    time.Time
	lines    int
	unlogged int // since the last line
}

// next tells whether a refusal at now has a line, and how many before had none.
func (l *refusalLog) next(now time.Time) (unlogged int, ok bool) {
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

// maxLogged bounds what of a request goes into the log, in bytes.
const maxLogged = 200

func shortened(text string) string {
	if len(text) > maxLogged {
		return text[:maxLogged] + "..."
	}
	return text
}

// refuse answers with one line. The connection ends: what the body still holds is not
// worth reading.
func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Connection", "close")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Error{Error: message}) // a client that has gone does not want it
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A client that sends a body or reads an answer slower than minRate on average, after
// patience, loses its connection: the memory and the share of expensive requests are
// needed.
const (
	patience = 30 * time.Second
	minRate  = 1 << 20 // bytes/s
)

// pacedWriter moves the deadline of an answer by what was written.
type pacedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	began   time.Time // of the answer; of the request before its first write
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
	w.extend() // for what net/http has buffered
	return n, err
}

// extend sets the deadline; only a writer of tests has none.
func (w *pacedWriter) extend() { _ = w.control.SetWriteDeadline(due(w.began, w.written)) }

// due is when n bytes must have passed.
func due(began time.Time, n int64) time.Time {
	return began.Add(patience + time.Duration(n)*time.Second/minRate)
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
