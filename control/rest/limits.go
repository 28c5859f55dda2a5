// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"

	"weft/api"
	"weft/control/change"
	"weft/control/limits"
	"weft/control/observe"
)

func (h *Handlers) limitRoutes(route router) {
	route("GET /v1/limits", func(r *http.Request) (any, error) { return h.LimitsOf(r.URL.Query().Get("port")) })
}

// LimitsOf returns the rows of all limits, or only the rows of the named port.
func (h *Handlers) LimitsOf(port string) ([]api.Limit, error) {
	rows := h.Limits.Rows()
	if port == "" {
		return h.limitList(rows), nil
	}
	no, ok := h.Pipeline.View().DatapathByName(port)
	if !ok {
		var err error
		h.Configuration.View(func(tx *change.Tx) { err = h.Pipeline.View().NoPort(port) })
		return nil, err
	}
	return h.limitList(limits.Select(rows, limits.Port(no))), nil
}

func (h *Handlers) limitList(rows []limits.Row) []api.Limit {
	view := h.Pipeline.View()
	return limits.JSON(rows, func(number uint32) string { return observe.PortWord(view, number) })
}
