package control

import (
	"net/http"
)

// toolRoutes are the API's requests for an operator who looks for something:
// traces, captures, events.
func (d *Daemon) toolRoutes(mux *http.ServeMux, route func(pattern string, answer func(r *http.Request) (any, error))) {
	route("GET /v1/trace", func(r *http.Request) (any, error) { return d.trace(r.URL.Query().Get("flow")) })
}
