// SPDX-License-Identifier: Apache-2.0

// Package rest answers the requests of the API over HTTP. Each file has the routes of one subject. A
// handler reads the request, calls the package that has the subject's state, and sends the result as
// JSON. The package has no state and no lock of its own.
package rest

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"weft/control/access"
	"weft/control/bridges"
	"weft/control/central"
	"weft/control/change"
	"weft/control/engines"
	"weft/control/limits"
	"weft/control/macs"
	"weft/control/observe"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/statistics"
	"weft/control/tracking"
	"weft/control/underlay"
	"weft/internal/logs"
)

// Setup has the objects whose state the handlers show and change. The daemon owns them.
type Setup struct {
	Name        string // the switch's name; "": none
	StateDir    string
	Since       time.Time       // when this process began
	Started     <-chan struct{} // closed when the daemon's start is complete; the API answers from then on
	ShutDown    func()          // ends the switch; returns at once
	LogSettings *logs.Log       // settings of Log

	Configuration *change.Configuration
	Engines       *engines.Engines
	Central       *central.Central // nil: the switch does not follow weft-central
	Ports         *ports.Ports
	Pipeline      *pipeline.Pipeline
	Bridges       *bridges.Bridges
	MACs          *macs.MACs
	Statistics    *statistics.Statistics
	Tracking      *tracking.Connections
	Templates     *underlay.Templates
	Captures      *observe.Captures
	Monitors      *observe.Monitors
	Connections   *observe.ConnectionEvents
	Requests      *access.Requests
	Limits        *limits.Registry
	Log           *slog.Logger
}

// Handlers answer the requests of the API.
type Handlers struct{ Setup }

// New returns the handlers of a daemon's API.
func New(setup Setup) *Handlers { return &Handlers{setup} }

// An answer is a function that handles a request of the API and returns the result for the
// response.
type answer func(r *http.Request) (any, error)

// A router adds a route to the API. The route calls the answer and sends its result as JSON.
type router func(pattern string, a answer)

// API adds the API's routes to mux, which the caller has made with the rules of Routes.
func (h *Handlers) API(mux *access.Mux) {
	route := h.router(mux)
	h.showRoutes(mux, route)
	h.bridgeRoutes(route)
	h.portRoutes(route)
	h.flowRoutes(route)
	h.changeRoutes(route)
	h.tableRoutes(route)
	h.macRoutes(route)
	h.conntrackRoutes(mux, route)
	h.traceRoutes(route)
	h.hottestRoutes(route)
	h.captureRoutes(mux)
	h.monitorRoutes(mux)
	h.limitRoutes(route)
	h.underlayRoutes(route)
	h.logRoutes(route)
	mux.Fallback(func(w http.ResponseWriter, r *http.Request) {
		h.reply(w, nil, &notFound{fmt.Sprintf("%s %s: no such request; expected one of those under /v1", r.Method, r.URL.Path)})
	})
}

// router returns a function that adds routes to mux. A client waits for an answer at most as
// long as access.Requests allows.
func (h *Handlers) router(mux *access.Mux) router {
	return func(pattern string, a answer) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			request := r.Method + " " + r.URL.Path
			result, err := h.Requests.Do(request, touchesMany(pattern), r.Method != http.MethodGet, func() (any, error) {
				defer endWithPanic(request)
				return a(r)
			})
			h.reply(w, result, lateBody(r, err))
		})
	}
}

// touchesMany reports whether a request for this pattern may touch all flows or
// connections, and therefore may take long.
func touchesMany(pattern string) bool {
	return strings.Contains(pattern, "flows") || strings.Contains(pattern, "conntrack") || strings.Contains(pattern, "hottest")
}
