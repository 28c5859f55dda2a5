// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"

	"weft/control/access"
)

// Metrics returns the handler of the metrics listener: metrics and health probes. Probes are
// answered at once, also during the start of the daemon.
func (h *Handlers) Metrics() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h.OnceStarted(h.patientMetrics()))
	mux.HandleFunc("GET /healthz", h.answerHealthy)
	mux.HandleFunc("GET /ready", h.answerReady)
	return mux
}

// answerHealthy answers a liveness probe: the control process works. The answer does not depend
// on the engine.
func (h *Handlers) answerHealthy(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("ok\n")) // error ignored: the client has closed the connection
}

// answerReady answers a readiness probe: frames are forwarded and changes succeed. If not, the
// answer has status 503 and the reason.
func (h *Handlers) answerReady(w http.ResponseWriter, _ *http.Request) {
	if reason := h.NotReady(); reason != "" {
		http.Error(w, reason, http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ready\n")) // error ignored: the client has closed the connection
}

// NotReady returns the reason why the switch is not ready, or "". It takes none of the locks
// that calls to a hung engine may hold.
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
