// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"

	"weft/api"
	"weft/control/pipeline"
	"weft/control/tables"
)

func (d *Daemon) tableRoutes(route router) {
	route("GET /v1/groups", withWords(func(r *http.Request, words pipeline.PortWords) (any, error) {
		b, err := d.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return b.Tables.ListGroups(r.URL.Query().Get("select"), words)
	}))
	route("POST /v1/groups", withBodyOnTables(d, (*tables.Tables).ChangeGroups))
	route("GET /v1/meters", d.onTables(func(r *http.Request, t *tables.Tables) (any, error) {
		return t.ListMeters(r.URL.Query().Get("select"))
	}))
	route("POST /v1/meters", withBodyOnTables(d, (*tables.Tables).ChangeMeters))
	route("GET /v1/queues", d.onTables(func(r *http.Request, t *tables.Tables) (any, error) {
		return t.ListQueues(r.URL.Query().Get("select"))
	}))
	route("GET /v1/tables", d.onTables(func(_ *http.Request, t *tables.Tables) (any, error) { return t.ListTables(), nil }))
	route("POST /v1/tables", withBodyOnTables(d, func(t *tables.Tables, mod api.ModTable) (any, error) {
		return struct{}{}, t.ModTable(mod)
	}))
	route("GET /v1/tlv-map", d.onTables(func(_ *http.Request, t *tables.Tables) (any, error) { return t.TLVMap(), nil }))
	route("POST /v1/tlv-map", withBodyOnTables(d, func(t *tables.Tables, change api.ChangeTLVs) (any, error) {
		return struct{}{}, t.ChangeTLVs(change)
	}))
}
