// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"

	"weft/api"
	"weft/control/pipeline"
	"weft/control/tables"
)

func (h *Handlers) tableRoutes(route router) {
	route("GET /v1/groups", withWords(func(r *http.Request, words pipeline.PortWords) (any, error) {
		b, err := h.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return b.Tables.ListGroups(r.URL.Query().Get("select"), words)
	}))
	route("POST /v1/groups", withBodyOnTables(h, (*tables.Tables).ChangeGroups))
	route("GET /v1/meters", h.onTables(func(r *http.Request, t *tables.Tables) (any, error) {
		return t.ListMeters(r.URL.Query().Get("select"))
	}))
	route("POST /v1/meters", withBodyOnTables(h, (*tables.Tables).ChangeMeters))
	route("GET /v1/queues", h.onTables(func(r *http.Request, t *tables.Tables) (any, error) {
		return t.ListQueues(r.URL.Query().Get("select"))
	}))
	route("GET /v1/tables", h.onTables(func(_ *http.Request, t *tables.Tables) (any, error) { return t.ListTables(), nil }))
	route("POST /v1/tables", withBodyOnTables(h, func(t *tables.Tables, mod api.ModTable) (any, error) {
		return struct{}{}, t.ModTable(mod)
	}))
	route("GET /v1/tlv-map", h.onTables(func(_ *http.Request, t *tables.Tables) (any, error) { return t.TLVMap(), nil }))
	route("POST /v1/tlv-map", withBodyOnTables(h, func(t *tables.Tables, change api.ChangeTLVs) (any, error) {
		return struct{}{}, t.ChangeTLVs(change)
	}))
}
