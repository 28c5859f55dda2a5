// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"
	"time"

	"weft/api"
	"weft/control/loop"
	"weft/control/usererr"
)

const (
	// limits of a request: the number of megaflows, and the length of the interval
	// between the two samples
	maxHot         = 1000
	maxHotInterval = time.Minute
)

func (h *Handlers) hottestRoutes(route router) {
	route("GET /v1/hottest", func(r *http.Request) (any, error) { return h.hottest(r) })
}

// hottest handles a request for /v1/hottest: the megaflows with the most frames in an interval.
func (h *Handlers) hottest(r *http.Request) ([]api.Hot, error) {
	q := r.URL.Query()
	n, err := numberOf(q, "n")
	if err != nil {
		return nil, err
	}
	ms, err := numberOf(q, "interval_ms")
	if err != nil {
		return nil, err
	}
	interval := time.Duration(ms) * time.Millisecond
	if n > maxHot || ms == 0 || interval > maxHotInterval {
		return nil, usererr.Errorf("n=%d, interval_ms=%d: expected at most %d megaflows and an interval of 1 to %d ms",
			n, ms, maxHot, maxHotInterval.Milliseconds())
	}
	before := h.Bridges.Megaflows().Sample()
	began := time.Now()
	if !loop.Sleep(r.Context(), interval) {
		return nil, r.Context().Err()
	}
	after := h.Bridges.Megaflows().Sample()
	return h.Bridges.Megaflows().Hottest(before, after, int(n), time.Since(began).Seconds()), nil
}
