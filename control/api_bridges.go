// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"

	"weft/api"
	"weft/control/bridges"
)

func (d *Daemon) bridgeRoutes(route router) {
	route("GET /v1/bridges", func(*http.Request) (any, error) { return d.bridges.List(), nil })
	route("POST /v1/bridges", withBody(func(_ *http.Request, add *api.AddBridge) (any, error) { return d.bridges.Add(*add) }))
	route("PATCH /v1/bridges", func(r *http.Request) (any, error) {
		b, err := d.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		var mod api.ModBridge
		if err := body(r, &mod); err != nil {
			return nil, err
		}
		return d.bridges.Modify(b, mod)
	})
	route("DELETE /v1/bridges/{name}", deletion(func(name string) bool { return d.bridges.Named(name) != nil }, d.bridges.Delete))
}

// bridgeOf returns the bridge that a request names; without a name, the first one.
func (d *Daemon) bridgeOf(r *http.Request) (*bridges.Bridge, error) {
	return d.bridges.Find(r.URL.Query().Get("bridge"))
}
