// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"
	"time"

	"weft/control/access"
)

// OnceStarted returns a handler that passes requests to next once the daemon has started. A
// request waits for the start at most for access.ExplainTimeout, and then gets an error.
func (h *Handlers) OnceStarted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-h.Started:
			next.ServeHTTP(w, r)
			return
		default:
		}
		timer := time.NewTimer(access.ExplainTimeout)
		defer timer.Stop()
		select {
		case <-h.Started:
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
		case <-timer.C:
			h.reply(w, nil, h.starting())
		}
	})
}

// errStarting is the error of a request that came during a long start.
var errStarting = &unavailable{"weftd is starting: it waits for the engine, or loads flows and ports; try again"}

// starting returns the error of a request during the start. It has the reason if the engine
// cannot start.
func (h *Handlers) starting() error {
	if reason := h.Engines.Troubled(); reason != "" {
		return &unavailable{"weftd is starting: " + reason}
	}
	return errStarting
}
