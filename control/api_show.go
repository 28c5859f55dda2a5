// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"
	"os"
	"time"

	"weft/api"
	"weft/control/access"
	"weft/internal/buildinfo"
	"weft/internal/privilege"
)

func (d *Daemon) showRoutes(mux *access.Mux, route router) {
	route("GET /v1/show", func(*http.Request) (any, error) { return d.show(), nil })
	mux.HandleFunc("GET /metrics", d.patientMetrics().ServeHTTP)
	mux.HandleFunc("POST /v1/shutdown", d.answerShutdown)
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
		Workers: d.statistics.Workers(), Ports: ports, Bridges: d.bridges.List(),
	}
	for _, l := range privilege.Missing() {
		s.MissingCapabilities = append(s.MissingCapabilities, api.MissingCapability{Name: privilege.Name(l.Capability), For: l.For})
	}
	if d.central != nil {
		s.Central = d.central.Status()
	}
	return s
}

// answerShutdown sends its response before the daemon ends, because the end closes the
// connection.
func (d *Daemon) answerShutdown(w http.ResponseWriter, r *http.Request) {
	d.log.Info("a client ends the switch", "client", access.PeerOf(r.Context()).Name)
	d.reply(w, api.ShuttingDown{PID: os.Getpid(), EnginePID: d.engines.PID()}, nil)
	_ = http.NewResponseController(w).Flush() // error ignored: the client has closed the connection
	d.shutDown()
}
