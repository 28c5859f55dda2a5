// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"

	"weft/api"
	"weft/control/pipeline"
	"weft/control/tables"
)

func (d *Daemon) modTableRoutes(route func(pattern string, answer func(r *http.Request) (any, error))) {
	route("POST /v1/tables", func(r *http.Request) (any, error) {
		var mod api.ModTable
		if err := body(r, &mod); err != nil {
			return nil, err
		}
		t, err := d.tablesOf(r)
		if err != nil {
			return nil, err
		}
		return struct{}{}, t.ModTable(mod)
	})
	route("GET /v1/tables", d.onTables(func(t *tables.Tables, _ *http.Request) (any, error) { return t.ListTables(), nil }))
	route("POST /v1/tlv-map", func(r *http.Request) (any, error) {
		var change api.ChangeTLVs
		if err := body(r, &change); err != nil {
			return nil, err
		}
		t, err := d.tablesOf(r)
		if err != nil {
			return nil, err
		}
		return struct{}{}, t.ChangeTLVs(change)
	})
	route("GET /v1/tlv-map", d.onTables(func(t *tables.Tables, _ *http.Request) (any, error) { return t.TLVMap(), nil }))
}

func (d *Daemon) tableRoutes(route func(pattern string, answer func(r *http.Request) (any, error))) {
	change := func(pattern string, fn func(*tables.Tables, api.ChangeTable) (api.TableChanged, error)) {
		route(pattern, func(r *http.Request) (any, error) {
			var c api.ChangeTable
			if err := body(r, &c); err != nil {
				return nil, err
			}
			t, err := d.tablesOf(r)
			if err != nil {
				return nil, err
			}
			return fn(t, c)
		})
	}
	change("POST /v1/groups", (*tables.Tables).ChangeGroups)
	change("POST /v1/meters", (*tables.Tables).ChangeMeters)
	route("GET /v1/groups", worded(func(r *http.Request, words pipeline.PortWords) (any, error) {
		t, err := d.tablesOf(r)
		if err != nil {
			return nil, err
		}
		return t.ListGroups(r.URL.Query().Get("select"), words)
	}))
	route("GET /v1/queues", d.onTables(func(t *tables.Tables, r *http.Request) (any, error) {
		return t.ListQueues(r.URL.Query().Get("select"))
	}))
	route("GET /v1/meters", d.onTables(func(t *tables.Tables, r *http.Request) (any, error) {
		return t.ListMeters(r.URL.Query().Get("select"))
	}))
}

// onTables returns a handler that gets the tables of the bridge that the request names.
func (d *Daemon) onTables(answer func(*tables.Tables, *http.Request) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		t, err := d.tablesOf(r)
		if err != nil {
			return nil, err
		}
		return answer(t, r)
	}
}

func (d *Daemon) packetOutRoutes(route func(pattern string, answer func(r *http.Request) (any, error))) {
	route("POST /v1/packet-out", func(r *http.Request) (any, error) {
		var out api.PacketOut
		if err := body(r, &out); err != nil {
			return nil, err
		}
		t, err := d.tablesOf(r)
		if err != nil {
			return nil, err
		}
		return t.PacketOut(out.Text)
	})
}

func (d *Daemon) macRoutes(route func(pattern string, answer func(r *http.Request) (any, error))) {
	route("GET /v1/macs", func(r *http.Request) (any, error) {
		b, err := d.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return d.macs.List(b.number), nil
	})
	route("DELETE /v1/macs", func(r *http.Request) (any, error) {
		b, err := d.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return d.macs.Flush(b.number, r.URL.Query().Get("port"))
	})
}
