// SPDX-License-Identifier: Apache-2.0

package rest

import "net/http"

func (h *Handlers) macRoutes(route router) {
	route("GET /v1/macs", func(r *http.Request) (any, error) {
		b, err := h.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return h.MACs.List(b.Number), nil
	})
	route("DELETE /v1/macs", func(r *http.Request) (any, error) {
		b, err := h.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return h.MACs.Flush(b.Number, r.URL.Query().Get("port"))
	})
}
