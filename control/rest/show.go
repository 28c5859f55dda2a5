// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"
	"os"
	"time"

	"weft/api"
	"weft/control/access"
	"weft/internal/buildinfo"
	"weft/internal/privilege"
)

func (h *Handlers) showRoutes(mux *access.Mux, route router) {
	route("GET /v1/show", func(*http.Request) (any, error) { return h.Show(), nil })
	mux.HandleFunc("GET /metrics", h.patientMetrics().ServeHTTP)
	mux.HandleFunc("POST /v1/shutdown", h.answerShutdown)
}

// Show describes the switch and its ports.
func (h *Handlers) Show() api.Show {
	ports, _ := h.Ports.List("") // fails for an unknown name only
	counts := h.Pipeline.Counts()
	own, engine := buildinfo.Own(), h.Engines.Build()
	s := api.Show{
		Version: own.Version, Commit: own.Commit, EngineVersion: engine.Version, EngineCommit: engine.Commit,
		Name: h.Name, PID: os.Getpid(), StateDir: h.StateDir,
		User: privilege.User(), Capabilities: privilege.Names(privilege.Own()),
		UptimeS: time.Since(h.Since).Seconds(), Restarts: h.Engines.Replaced().All, EnginePID: h.Engines.PID(),
		Flows: counts.Flows, Megaflows: counts.Megaflows, MACs: counts.MACs,
		Workers: h.Statistics.Workers(), Ports: ports, Bridges: h.Bridges.List(),
	}
	for _, l := range privilege.Missing() {
		s.MissingCapabilities = append(s.MissingCapabilities, api.MissingCapability{Name: privilege.Name(l.Capability), For: l.For})
	}
	if h.Central != nil {
		s.Central = h.Central.Status()
	}
	return s
}

// answerShutdown sends its response before the daemon ends, because the end closes the
// connection.
func (h *Handlers) answerShutdown(w http.ResponseWriter, r *http.Request) {
	h.Log.Info("a client ends the switch", "client", access.PeerOf(r.Context()).Name)
	h.reply(w, api.ShuttingDown{PID: os.Getpid(), EnginePID: h.Engines.PID()}, nil)
	_ = http.NewResponseController(w).Flush() // error ignored: the client has closed the connection
	h.ShutDown()
}
