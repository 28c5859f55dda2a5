// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"

	"weft/control/access"
)

// Metrics serves the metrics listener. Health probes answer at once, also during
// the start of the daemon.
func (h *Handlers) Metrics() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h.OnceStarted(h.patientMetrics()))
	mux.HandleFunc("GET /healthz", h.answerHealthy)
	mux.HandleFunc("GET /ready", h.answerReady)
	return mux
}

// answerHealthy answers that the control process works. The answer says nothing about
// the engine.
func (h *Handlers) answerHealthy(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("ok\n")) // error ignored: the client has closed the connection
}

// answerReady says whether frames are forwarded and changes succeed; otherwise it says why
// not, with status 503.
func (h *Handlers) answerReady(w http.ResponseWriter, _ *http.Request) {
	if reason := h.NotReady(); reason != "" {
		http.Error(w, reason, http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ready\n")) // error ignored: the client has closed the connection
}

// NotReady returns the reason why the switch is not ready, or "". It takes no lock that a
// hung engine could hold.
func (h *Handlers) NotReady() string {
	select {
	case <-h.Started:
	default:
		return h.starting().Error()
	}
	if reason := h.Engines.Troubled(); reason != "" {
		return reason
	}
	if reason := h.Engines.Unanswered(access.ExplainTimeout); reason != "" {
		return reason
	}
	if h.Engines.PID() == 0 {
		return "no engine runs; weftd is starting one"
	}
	return ""
}
