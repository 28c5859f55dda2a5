package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"weft/api"
	"weft/control/usererr"
)

// maxBody bounds a request's body in bytes: a million flows of a hundred.
const maxBody = 256 << 20

// listen opens the API's sockets. Nobody is answered before serve.
func (d *Daemon) listen() error {
	l, err := listenUnix(d.config.Socket, d.config.SocketGroup)
	if err != nil {
		return err
	}
	d.listeners = append(d.listeners, l)
	if d.config.VsockPort != 0 {
		// A convenience: a host without vsock is served on its socket all the same.
		if l, err := vsock.Listen(d.config.VsockPort, nil); err != nil {
			d.log.Warn("the API does not listen on vsock", "port", d.config.VsockPort, "error", err)
		} else {
			d.listeners = append(d.listeners, l)
		}
	}
	if d.config.Metrics == "" {
		return nil
	}
	m, err := net.Listen("tcp", d.config.Metrics)
	if err != nil {
		d.closeAPI()
		return fmt.Errorf("metrics address %s: %w", d.config.Metrics, listenCause(err))
	}
	d.listeners = append(d.listeners, m)
	return nil
}

func listenCause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return usererr.Cause(op.Err)
	}
	return err
}

// listenUnix listens on path, mode 0600, or 0660 for group. A socket that
// nobody answers is what a dead daemon left and is replaced.
func listenUnix(path, group string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("socket %s: %w; run as root, or give another with --socket", path, usererr.Cause(err))
	}
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode()&os.ModeSocket == 0:
		return nil, fmt.Errorf("socket %s: is there and is no socket; remove it, or give another with --socket", path)
	case err == nil:
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			conn.Close()
			return nil, fmt.Errorf("socket %s: in use by another process; stop it, or give another with --socket", path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("socket %s: %w", path, listenCause(err))
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("socket %s: %w", path, usererr.Cause(err))
		}
	}
	old := unix.Umask(0o177)
	l, err := net.Listen("unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w; run as root, or give another with --socket", path, listenCause(err))
	}
	if group == "" {
		return l, nil
	}
	if err := giveToGroup(path, group); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func giveToGroup(path, group string) error {
	g, err := user.LookupGroup(group)
	if err != nil {
		return inputf("socket group %s: no such group", group)
	}
	gid, err := strconv.Atoi(g.Gid)
	if err == nil {
		err = os.Chown(path, -1, gid)
	}
	if err == nil {
		err = os.Chmod(path, 0o660)
	}
	if err != nil {
		return fmt.Errorf("socket %s: group %s: %w", path, group, usererr.Cause(err))
	}
	return nil
}

// serve answers requests from now on.
func (d *Daemon) serve() {
	full, metrics := d.handler(), http.NewServeMux()
	metrics.Handle("GET /metrics", d.metricsHandler())
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	for _, l := range d.listeners {
		handler := full
		if l.Addr().Network() == "tcp" {
			handler = metrics // whoever reaches it may look, not change
		}
		server := &http.Server{Handler: endOnPanic(handler), ReadHeaderTimeout: 10 * time.Second, ErrorLog: quiet}
		d.servers = append(d.servers, server)
		go func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				d.log.Error("API", "address", l.Addr(), "error", err)
			}
		}()
	}
}

// endOnPanic has a panic end the process. net/http would go on, with locks taken for
// good and a change half done; the next control process finds the state whole, and the
// engine forwards meanwhile.
func endOnPanic(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				endProcess(fmt.Sprintf("%s %s: %v\n\n%s", r.Method, r.URL.Path, v, debug.Stack()))
			}
		}()
		h.ServeHTTP(w, r)
	})
}

// endProcess panics where nobody recovers. Tests replace it.
var endProcess = func(why string) {
	go panic(why)
	select {}
}

// closeAPI closes listeners, sockets and connections.
func (d *Daemon) closeAPI() {
	for _, s := range d.servers {
		s.Close()
	}
	for _, l := range d.listeners {
		l.Close() // a unix listener removes its socket
	}
}

// handler is the API; see package api for its paths.
func (d *Daemon) handler() http.Handler {
	mux := http.NewServeMux()
	route := func(pattern string, answer func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			result, err := answer(r)
			d.reply(w, result, err)
		})
	}
	route("GET /v1/show", func(*http.Request) (any, error) { return d.show(), nil })
	route("GET /v1/ports", func(r *http.Request) (any, error) { return d.listPorts(r.URL.Query().Get("name")) })
	route("POST /v1/ports", func(r *http.Request) (any, error) {
		var add api.AddPort
		if err := body(r, &add); err != nil {
			return nil, err
		}
		return d.addPort(add.Name, add.Options)
	})
	route("DELETE /v1/ports/{name}", func(r *http.Request) (any, error) {
		return struct{}{}, d.deletePort(r.PathValue("name"))
	})
	route("GET /v1/flows", worded(func(r *http.Request, words portWords) (any, error) {
		return d.dumpFlows(r.URL.Query().Get("match"), words, r.URL.Query()["sort"]...)
	}))
	route("POST /v1/flows", func(r *http.Request) (any, error) {
		change, err := changeOf(r)
		if err != nil {
			return nil, err
		}
		return d.changeFlows(change)
	})
	route("DELETE /v1/flows", func(r *http.Request) (any, error) {
		q := r.URL.Query()
		strict, err := strictWord(q.Get("strict"))
		if err != nil {
			return nil, err
		}
		return d.deleteFlows(q.Get("match"), strict)
	})
	d.tableRoutes(route)
	d.modTableRoutes(route)
	d.macRoutes(route)
	d.packetOutRoutes(route)
	d.limitRoutes(route)
	route("GET /v1/megaflows", worded(func(r *http.Request, words portWords) (any, error) {
		return d.dumpMegaflows(words), nil
	}))
	d.toolRoutes(mux, route)
	mux.Handle("GET /metrics", d.metricsHandler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		d.reply(w, nil, &notFound{fmt.Sprintf("%s %s: no such request; expected one of those under /v1", r.Method, r.URL.Path)})
	})
	return mux
}

type notFound struct{ message string }

func (e *notFound) Error() string { return e.message }

func strictWord(word string) (bool, error) {
	switch word {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, inputf("strict=%s: expected true or false", word)
}

// body decodes a request's JSON, whole and without unknown fields.
func body(r *http.Request, into any) error {
	dec := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return inputf("body: %v; expected JSON as in package api", err)
	}
	return nil
}

// changeOf is a change of flows: JSON or, as plain text, a file.
func changeOf(r *http.Request) (c api.ChangeFlows, err error) {
	if r.Header.Get("Content-Type") != "text/plain" {
		return c, body(r, &c)
	}
	var text strings.Builder
	text.Grow(int(min(max(r.ContentLength, 0), maxBody)))
	if _, err = io.Copy(&text, io.LimitReader(r.Body, maxBody+1)); err != nil {
		return c, inputf("body: %v; expected a file of flows", err)
	}
	if text.Len() > maxBody {
		return c, inputf("body: expected at most %d bytes", maxBody)
	}
	return api.ChangeFlows{Op: r.URL.Query().Get("op"), Text: text.String(), File: true}, nil
}

func (d *Daemon) reply(w http.ResponseWriter, result any, err error) {
	status := http.StatusOK
	if err != nil {
		var input *InputError
		var missing *notFound
		switch {
		case errors.As(err, &input):
			status = http.StatusBadRequest
		case errors.As(err, &missing):
			status = http.StatusNotFound
		default:
			status = http.StatusInternalServerError
			d.log.Error("request failed", "error", err)
		}
		result = api.Error{Error: err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(result) // a client that has gone does not want it
}

func (d *Daemon) show() api.Show {
	ports, _ := d.listPorts("") // fails for a name only
	d.mu.RLock()
	flows := d.pipeline.Len()
	d.mu.RUnlock()
	s := api.Show{
		Version: api.Version(), PID: os.Getpid(), StateDir: d.config.StateDir,
		UptimeS: time.Since(d.started).Seconds(), Restarts: d.restarts.Load(),
		Flows: flows, Megaflows: d.megaflows.len(), MACs: d.macs.len(),
		Workers: d.workerStats(), Ports: ports,
	}
	if c := d.engine(); c != nil {
		s.EnginePID = c.PID()
	}
	return s
}
