// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/user"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"weft/api"
	"weft/control/access"
	"weft/control/observe"
	"weft/control/patience"
	"weft/control/pipeline"
	"weft/control/tables"
	"weft/control/usererr"
	"weft/internal/buildinfo"
	"weft/internal/privilege"
)

func (d *Daemon) listen() error {
	policy := access.Policy{UID: os.Geteuid(), WriteGroup: access.NoGroup, ReadGroup: access.NoGroup, CIDs: access.DefaultCIDs()}
	maps.Copy(policy.CIDs, d.config.VsockAllow)
	for _, g := range []struct {
		name   string
		number *int
	}{{d.config.SocketGroup, &policy.WriteGroup}, {d.config.SocketReadGroup, &policy.ReadGroup}} {
		if err := lookupGroup(g.name, g.number); err != nil {
			return err
		}
	}
	var err error
	d.servers, err = access.Open(access.Config{Socket: d.config.Socket, VsockPort: d.config.VsockPort,
		Metrics: d.config.Metrics, Policy: policy, Log: d.log})
	if err != nil {
		return err
	}
	d.limits.Add(d.servers.LimitRows)
	d.policy = &policy
	if err = d.firstBridge(); err != nil {
		d.servers.Close()
	}
	return err
}

// lookupGroup looks up the group with this name, and stores its number. For an empty
// name it does nothing.
func lookupGroup(name string, number *int) error {
	if name == "" {
		return nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return usererr.Errorf("socket group %s: no such group", name)
	}
	*number, err = strconv.Atoi(g.Gid)
	return err
}

func (d *Daemon) serve() {
	d.servers.Serve(endOnPanic(d.onceStarted(d.handler())), endOnPanic(d.metricsHandler()))
}

// onceStarted delays requests until the daemon has started, at most for
// patience.Explain.
func (d *Daemon) onceStarted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-d.ready:
			h.ServeHTTP(w, r)
			return
		default:
		}
		timer := time.NewTimer(patience.Explain)
		defer timer.Stop()
		select {
		case <-d.ready:
			h.ServeHTTP(w, r)
		case <-r.Context().Done():
		case <-timer.C:
			d.reply(w, nil, d.starting())
		}
	})
}

// errStarting answers a request during a long start.
var errStarting = &unavailable{"weftd is starting: it waits for the engine, or loads flows and ports; try again"}

// starting returns the error of a request during the start, with the reason if the next
// engine cannot start.
func (d *Daemon) starting() error {
	if reason := d.engines.Troubled(); reason != "" {
		return &unavailable{"weftd is starting: " + reason}
	}
	return errStarting
}

type unavailable struct{ message string }

func (e *unavailable) Error() string { return e.message }

// endOnPanic ends the process if the handler h panics. net/http would otherwise
// continue, with locked locks and half-applied changes. The engine keeps forwarding.
func endOnPanic(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer endWithPanic(r.Method + " " + r.URL.Path)
		h.ServeHTTP(w, r)
	})
}

func endWithPanic(request string) {
	if v := recover(); v != nil {
		endProcess(fmt.Sprintf("%s: %v\n\n%s", request, v, debug.Stack()))
	}
}

// endProcess panics in a new goroutine, where nothing recovers the panic; tests replace
// it
var endProcess = func(reason string) {
	go panic(reason)
	select {}
}

func (d *Daemon) handler() *access.Mux {
	mux := d.servers.NewMux(apiRoutes)
	route := func(pattern string, answer func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			request := r.Method + " " + r.URL.Path
			result, err := d.requests.Do(request, touchesMany(pattern), r.Method != http.MethodGet, func() (any, error) {
				defer endWithPanic(request)
				return answer(r)
			})
			d.reply(w, result, lateBody(r, err))
		})
	}
	route("GET /v1/show", func(*http.Request) (any, error) { return d.show(), nil })
	d.bridgeRoutes(route)
	route("GET /v1/ports", func(r *http.Request) (any, error) { return d.listPorts(r) })
	route("POST /v1/ports", func(r *http.Request) (any, error) {
		var add api.AddPort
		if err := body(r, &add); err != nil {
			return nil, err
		}
		if add.Check {
			return struct{}{}, d.ports.CheckAdd(add.Name, add.Options)
		}
		if add.MayExist {
			return d.ports.Ensure(add.Name, add.Options)
		}
		return d.ports.Add(add.Name, add.Options)
	})
	route("PATCH /v1/ports/{name}", func(r *http.Request) (any, error) {
		var mod api.ModPort
		if err := body(r, &mod); err != nil {
			return nil, err
		}
		if mod.Check {
			return struct{}{}, d.ports.CheckModify(r.PathValue("name"), mod.Options)
		}
		return d.ports.Modify(r.PathValue("name"), mod.Options)
	})
	route("DELETE /v1/ports/{name}", func(r *http.Request) (any, error) {
		ifExists, err := truthWord("if_exists", r.URL.Query().Get("if_exists"))
		if err != nil {
			return nil, err
		}
		if name := r.PathValue("name"); !ifExists || d.ports.Exists(name) {
			return struct{}{}, d.ports.Delete(name)
		}
		return struct{}{}, nil
	})
	route("GET /v1/flows", worded(func(r *http.Request, words pipeline.PortWords) (any, error) {
		t, err := d.tablesOf(r)
		if err != nil {
			return nil, err
		}
		return t.DumpFlows(r.URL.Query().Get("match"), words, r.URL.Query()["sort"]...)
	}))
	route("POST /v1/flows", func(r *http.Request) (any, error) {
		change, err := changeOf(r)
		if err != nil {
			return nil, err
		}
		t, err := d.tablesOf(r)
		if err != nil {
			return nil, err
		}
		return t.ChangeFlows(change)
	})
	route("DELETE /v1/flows", func(r *http.Request) (any, error) {
		q := r.URL.Query()
		strict, err := truthWord("strict", q.Get("strict"))
		if err != nil {
			return nil, err
		}
		t, err := d.tablesOf(r)
		if err != nil {
			return nil, err
		}
		return t.DeleteFlows(q.Get("match"), strict)
	})
	d.tableRoutes(route)
	d.modTableRoutes(route)
	d.macRoutes(route)
	d.packetOutRoutes(route)
	d.limitRoutes(route)
	d.logRoutes(route)
	route("GET /v1/megaflows", worded(func(r *http.Request, words pipeline.PortWords) (any, error) {
		return d.megaflows().DumpMegaflows(words), nil
	}))
	mux.HandleFunc("POST /v1/shutdown", d.answerShutdown)
	d.toolRoutes(mux, route)
	mux.HandleFunc("GET /metrics", d.patientMetrics().ServeHTTP)
	mux.Fallback(func(w http.ResponseWriter, r *http.Request) {
		d.reply(w, nil, &notFound{fmt.Sprintf("%s %s: no such request; expected one of those under /v1", r.Method, r.URL.Path)})
	})
	return mux
}

// answerShutdown sends its response before the daemon ends, because the end closes the
// connection.
func (d *Daemon) answerShutdown(w http.ResponseWriter, r *http.Request) {
	d.log.Info("a client ends the switch", "client", access.PeerOf(r.Context()).Name)
	d.reply(w, api.ShuttingDown{PID: os.Getpid(), EnginePID: d.engines.PID()}, nil)
	_ = http.NewResponseController(w).Flush() // error ignored: the client has closed the connection
	d.shutDown()
}

// touchesMany reports whether a request for this pattern may touch all flows or
// connections, and therefore may take long.
func touchesMany(pattern string) bool {
	return strings.Contains(pattern, "flows") || strings.Contains(pattern, "conntrack") || strings.Contains(pattern, "hottest")
}

// patientMetrics returns the metrics handler, with the time limit patience.Short.
func (d *Daemon) patientMetrics() http.Handler {
	return http.TimeoutHandler(observe.MetricsHandler(d.numbers), patience.Short, "weftd is busy: the metrics are not there in time\n")
}

type notFound struct{ message string }

func (e *notFound) Error() string { return e.message }

func truthWord(name, word string) (bool, error) {
	switch word {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, usererr.Errorf("%s=%s: expected true or false", name, word)
}

func body(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return bodyError(err, "JSON as in package api")
	}
	return nil
}

func bodyError(err error, expected string) error {
	var limit *access.LimitError
	if errors.As(err, &limit) {
		return &access.LimitError{Status: limit.Status, Message: "body: " + limit.Message}
	}
	return usererr.Errorf("body: %v; expected %s", err, expected)
}

// lateBody returns a better error than err if the client did not send its whole body in
// time. Such a request has changed nothing.
func lateBody(r *http.Request, err error) error {
	var late *patience.TooLong
	if !errors.As(err, &late) || !access.AbandonBody(r) {
		return err
	}
	return &access.LimitError{Status: http.StatusRequestTimeout,
		Message: "body: the client has not sent all of it in time, and nothing was changed; send the request again, without pauses"}
}

// changeOf parses the change of flows in a request: JSON, or a file of flows as plain
// text.
func changeOf(r *http.Request) (c api.ChangeFlows, err error) {
	if r.Header.Get("Content-Type") != "text/plain" {
		return c, body(r, &c)
	}
	var text strings.Builder
	// limited, because a client may announce more bytes than it sends
	text.Grow(int(min(max(r.ContentLength, 0), access.SmallBody)))
	if _, err = io.Copy(&text, r.Body); err != nil {
		return c, bodyError(err, "a file of flows")
	}
	return api.ChangeFlows{Op: r.URL.Query().Get("op"), Text: text.String(), File: true}, nil
}

func (d *Daemon) reply(w http.ResponseWriter, result any, err error) {
	status := http.StatusOK
	if err != nil {
		var input *usererr.Error
		var missing *notFound
		var limit *access.LimitError
		var late *patience.TooLong
		var starting *unavailable
		switch {
		case errors.As(err, &limit):
			status = limit.Status
		case errors.As(err, &input):
			status = http.StatusBadRequest
		case errors.As(err, &missing):
			status = http.StatusNotFound
		case errors.As(err, &starting):
			status = http.StatusServiceUnavailable
		case errors.As(err, &late):
			status = http.StatusServiceUnavailable
			d.log.Error("request is abandoned", "error", err)
		case errors.Is(err, context.Canceled): // the client has closed the connection
			status = http.StatusInternalServerError
		default:
			status = http.StatusInternalServerError
			d.log.Error("request failed", "error", err)
		}
		result = api.Error{Error: err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = writeJSON(w, result) // error ignored: the client has closed the connection
}

const listChunk = 1024

// writeJSON encodes v like json.Encoder, but in chunks. Encoding a million flows at
// once would take hundreds of megabytes.
func writeJSON(w io.Writer, v any) error {
	list := reflect.ValueOf(v)
	if list.Kind() != reflect.Slice || list.Len() <= listChunk || list.Type().Elem().Kind() == reflect.Uint8 {
		return json.NewEncoder(w).Encode(v)
	}
	for from := 0; from < list.Len(); from += listChunk {
		text, err := json.Marshal(list.Slice(from, min(from+listChunk, list.Len())).Interface())
		if err != nil {
			return err
		}
		if from > 0 {
			text[0] = ',' // a comma replaces the opening bracket of every chunk but the first
		}
		if from+listChunk < list.Len() {
			text = text[:len(text)-1]
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	_, err := w.Write([]byte("\n"))
	return err
}

func (d *Daemon) show() api.Show {
	ports, _ := d.ports.List("") // fails for an unknown name only
	counts := d.pipeline.Counts()
	own, engine := buildinfo.Own(), d.engines.Build()
	s := api.Show{
		Version: own.Version, Commit: own.Commit, EngineVersion: engine.Version, EngineCommit: engine.Commit,
		Name: d.config.Name, PID: os.Getpid(), StateDir: d.config.StateDir,
		User: privilege.User(), Capabilities: privilege.Names(privilege.Own()),
		UptimeS: time.Since(d.started).Seconds(), Restarts: d.engines.Replaced().All, EnginePID: d.engines.PID(),
		Flows: counts.Flows, Megaflows: counts.Megaflows, MACs: counts.MACs,
		Workers: d.statistics.Workers(), Ports: ports, Bridges: d.listBridges(),
	}
	for _, l := range privilege.Missing() {
		s.MissingCapabilities = append(s.MissingCapabilities, api.MissingCapability{Name: privilege.Name(l.Capability), For: l.For})
	}
	if d.central != nil {
		s.Central = d.central.Status()
	}
	return s
}

// megaflows returns the handler of what all bridges share.
func (d *Daemon) megaflows() *tables.Tables { return d.bridges.named("").tables }
