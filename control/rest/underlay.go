// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"
	"net/netip"

	"weft/api"
	"weft/control/change"
	"weft/control/observe"
)

func (h *Handlers) underlayRoutes(route router) {
	route("GET /v1/routes", func(r *http.Request) (any, error) { return h.listRoutes(r.URL.Query().Get("port")) })
}

// listRoutes describes the paths of all tunnels to their remotes, or only those of the named
// port.
func (h *Handlers) listRoutes(port string) ([]api.Route, error) {
	view := h.Pipeline.View()
	number := uint32(0)
	if port != "" {
		var ok bool
		if number, ok = view.DatapathByName(port); !ok {
			var err error
			h.Configuration.View(func(tx *change.Tx) { err = h.Pipeline.View().NoPort(port) })
			return nil, err
		}
	}
	list := []api.Route{}
	for _, r := range h.Templates.Routes() {
		if port != "" && r.Port != number {
			continue
		}
		list = append(list, api.Route{Port: observe.PortWord(view, r.Port), Remote: r.Remote.String(), Local: textOf(r.Local), NextHop: textOf(r.NextHop),
			Device: r.Device, MAC: r.MAC, MTU: r.MTU, State: r.State, Reason: r.Reason})
	}
	return list, nil
}

// textOf returns the text of an address, or "" if it is invalid.
func textOf(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
