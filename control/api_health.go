// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"

	"weft/control/access"
)

// metricsHandler serves the metrics listener. Health probes answer at once, also during
// the start of the daemon.
func (d *Daemon) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", d.onceStarted(d.patientMetrics()))
	mux.HandleFunc("GET /healthz", d.answerHealthy)
	mux.HandleFunc("GET /ready", d.answerReady)
	return mux
}

// answerHealthy answers that the control process works. The answer says nothing about
// the engine.
func (d *Daemon) answerHealthy(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("ok\n")) // error ignored: the client has closed the connection
}

// answerReady says whether frames are forwarded and changes succeed; otherwise it says why
// not, with status 503.
func (d *Daemon) answerReady(w http.ResponseWriter, _ *http.Request) {
	if reason := d.notReady(); reason != "" {
		http.Error(w, reason, http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ready\n")) // error ignored: the client has closed the connection
}

// notReady returns the reason why the switch is not ready, or "". It takes no lock that a
// hung engine could hold.
func (d *Daemon) notReady() string {
	select {
	case <-d.ready:
	default:
		return d.starting().Error()
	}
	if reason := d.engines.Troubled(); reason != "" {
		return reason
	}
	if reason := d.engines.Unanswered(access.ExplainTimeout); reason != "" {
		return reason
	}
	if d.engines.PID() == 0 {
		return "no engine runs; weftd is starting one"
	}
	return ""
}
