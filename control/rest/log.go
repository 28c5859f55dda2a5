// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"

	"weft/api"
	"weft/control/usererr"
	"weft/internal/logs"
)

// logRoutes adds the routes that show and change the settings of the daemon's log.
func (h *Handlers) logRoutes(route router) {
	settings := h.LogSettings
	now := func() (any, error) { return api.Log{Level: settings.Level(), Format: settings.Format()}, nil }
	route("GET /v1/log", func(*http.Request) (any, error) { return now() })
	route("POST /v1/log", withBody(func(_ *http.Request, change *api.Log) (any, error) {
		if change.Level != "" {
			if _, err := logs.ParseLevel(change.Level); err != nil {
				return nil, usererr.Errorf("level: %v", err)
			}
		}
		if err := settings.Set(change.Level, change.Format); err != nil {
			return nil, usererr.Errorf("format: %v", err)
		}
		h.Log.Info("log", "level", settings.Level(), "format", settings.Format())
		return now()
	}))
}
