// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"

	"weft/api"
	"weft/control/bridges"
)

func (h *Handlers) bridgeRoutes(route router) {
	route("GET /v1/bridges", func(*http.Request) (any, error) { return h.Bridges.List(), nil })
	route("POST /v1/bridges", withBody(func(_ *http.Request, add *api.AddBridge) (any, error) { return h.Bridges.Add(*add) }))
	route("PATCH /v1/bridges", func(r *http.Request) (any, error) {
		b, err := h.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		var mod api.ModBridge
		if err := body(r, &mod); err != nil {
			return nil, err
		}
		return h.Bridges.Modify(b, mod)
	})
	route("DELETE /v1/bridges/{name}", deletion(func(name string) bool { return h.Bridges.Named(name) != nil }, h.Bridges.Delete))
}

// bridgeOf returns the bridge that a request names in the parameter "bridge", or the first
// bridge if it names none.
func (h *Handlers) bridgeOf(r *http.Request) (*bridges.Bridge, error) {
	return h.Bridges.Find(r.URL.Query().Get("bridge"))
}
