// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"

	"weft/api"
	"weft/control/pipeline"
)

func (d *Daemon) modTableRoutes(route func(pattern string, answer func(r *http.Request) (any, error))) {
	route("POST /v1/tables", func(r *http.Request) (any, error) {
		var mod api.ModTable
		if err := body(r, &mod); err != nil {
			return nil, err
		}
		return struct{}{}, d.tables.ModTable(mod)
	})
	route("GET /v1/tables", func(*http.Request) (any, error) { return d.tables.ListTables(), nil })
}

func (d *Daemon) tableRoutes(route func(pattern string, answer func(r *http.Request) (any, error))) {
	change := func(pattern string, fn func(api.ChangeTable) (api.TableChanged, error)) {
		route(pattern, func(r *http.Request) (any, error) {
			var c api.ChangeTable
			if err := body(r, &c); err != nil {
				return nil, err
			}
			return fn(c)
		})
	}
	change("POST /v1/groups", d.tables.ChangeGroups)
	change("POST /v1/meters", d.tables.ChangeMeters)
	route("GET /v1/groups", worded(func(r *http.Request, words pipeline.PortWords) (any, error) {
		return d.tables.ListGroups(r.URL.Query().Get("select"), words)
	}))
	route("GET /v1/meters", func(r *http.Request) (any, error) { return d.tables.ListMeters(r.URL.Query().Get("select")) })
}

func (d *Daemon) packetOutRoutes(route func(pattern string, answer func(r *http.Request) (any, error))) {
	route("POST /v1/packet-out", func(r *http.Request) (any, error) {
		var out api.PacketOut
		if err := body(r, &out); err != nil {
			return nil, err
		}
		return d.tables.PacketOut(out.Text)
	})
}

func (d *Daemon) macRoutes(route func(pattern string, answer func(r *http.Request) (any, error))) {
	route("GET /v1/macs", func(*http.Request) (any, error) { return d.macs.List(), nil })
	route("DELETE /v1/macs", func(r *http.Request) (any, error) { return d.macs.Flush(r.URL.Query().Get("port")) })
}
