package control

import (
	"net/http"

	"weft/api"
	"weft/control/access"
)

// toolRoutes are the API's requests for an operator who looks for something:
// traces, captures, events.
func (d *Daemon) toolRoutes(mux *access.Mux, route func(pattern string, answer func(r *http.Request) (any, error))) {
	d.captureRoutes(mux)
	route("GET /v1/hottest", func(r *http.Request) (any, error) { return d.hottest(r) })
	mux.HandleFunc("GET /v1/monitor", d.streamMonitor)
	d.conntrackRoutes(mux, route)
	route("POST /v1/flows/diff", worded(func(r *http.Request, words portWords) (any, error) {
		var c api.DiffFlows
		if err := body(r, &c); err != nil {
			return nil, err
		}
		return d.pipeline.diffFlows(c, words)
	}))
	route("GET /v1/trace", worded(func(r *http.Request, words portWords) (any, error) {
		return d.pipeline.trace(r.URL.Query().Get("flow"), r.URL.Query().Get("ct_next"), words)
	}))
}
