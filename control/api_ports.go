// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"
	"slices"

	"weft/api"
)

func (d *Daemon) portRoutes(route router) {
	route("GET /v1/ports", func(r *http.Request) (any, error) { return d.listPorts(r) })
	route("POST /v1/ports", withBody(func(_ *http.Request, add *api.AddPort) (any, error) {
		switch {
		case add.Check:
			return struct{}{}, d.ports.CheckAdd(add.Name, add.Options)
		case add.MayExist:
			return d.ports.Ensure(add.Name, add.Options)
		}
		return d.ports.Add(add.Name, add.Options)
	}))
	route("PATCH /v1/ports/{name}", withBody(func(r *http.Request, mod *api.ModPort) (any, error) {
		if mod.Check {
			return struct{}{}, d.ports.CheckModify(r.PathValue("name"), mod.Options)
		}
		return d.ports.Modify(r.PathValue("name"), mod.Options)
	}))
	route("DELETE /v1/ports/{name}", deletion(d.ports.Exists, d.ports.Delete))
}

// listPorts describes the named port, or all ports; of a bridge if the request names one.
func (d *Daemon) listPorts(r *http.Request) ([]api.Port, error) {
	list, err := d.ports.List(r.URL.Query().Get("name"))
	if err != nil || r.URL.Query().Get("bridge") == "" {
		return list, err
	}
	b, err := d.bridgeOf(r)
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
