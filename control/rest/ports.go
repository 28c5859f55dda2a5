// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"
	"slices"

	"weft/api"
)

func (h *Handlers) portRoutes(route router) {
	route("GET /v1/ports", func(r *http.Request) (any, error) { return h.listPorts(r) })
	route("POST /v1/ports", withBody(func(_ *http.Request, add *api.AddPort) (any, error) {
		switch {
		case add.Check:
			return struct{}{}, h.Ports.CheckAdd(add.Name, add.Options)
		case add.MayExist:
			return h.Ports.Ensure(add.Name, add.Options)
		}
		return h.Ports.Add(add.Name, add.Options)
	}))
	route("PATCH /v1/ports/{name}", withBody(func(r *http.Request, mod *api.ModPort) (any, error) {
		if mod.Check {
			return struct{}{}, h.Ports.CheckModify(r.PathValue("name"), mod.Options)
		}
		return h.Ports.Modify(r.PathValue("name"), mod.Options)
	}))
	route("DELETE /v1/ports/{name}", deletion(h.Ports.Exists, h.Ports.Delete))
}

// listPorts describes the ports that a request selects: the named port, the ports of a bridge,
// or all ports.
func (h *Handlers) listPorts(r *http.Request) ([]api.Port, error) {
	list, err := h.Ports.List(r.URL.Query().Get("name"))
	if err != nil || r.URL.Query().Get("bridge") == "" {
		return list, err
	}
	b, err := h.bridgeOf(r)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(p api.Port) bool {
		if p.Bridge == "" {
			return b.Number != 0
		}
		return p.Bridge != b.Name
	}), nil
}
