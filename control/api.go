// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net/http"
	"strings"

	"weft/control/access"
)

// answer handles a request of the API and returns its result.
type answer func(r *http.Request) (any, error)

// router adds a route to the API. The route sends the answer's result as JSON.
type router func(pattern string, a answer)

// handler returns the handler of the API.
func (d *Daemon) handler() *access.Mux {
	mux := d.servers.NewMux(apiRoutes)
	route := d.router(mux)
	d.showRoutes(mux, route)
	d.bridgeRoutes(route)
	d.portRoutes(route)
	d.flowRoutes(route)
	d.changeRoutes(route)
	d.tableRoutes(route)
	d.macRoutes(route)
	d.conntrackRoutes(mux, route)
	d.traceRoutes(route)
	d.hottestRoutes(route)
	d.captureRoutes(mux)
	d.monitorRoutes(mux)
	d.limitRoutes(route)
	d.underlayRoutes(route)
	d.logRoutes(route)
	mux.Fallback(func(w http.ResponseWriter, r *http.Request) {
		d.reply(w, nil, &notFound{fmt.Sprintf("%s %s: no such request; expected one of those under /v1", r.Method, r.URL.Path)})
	})
	return mux
}

// router returns a router to mux. A client waits for an answer at most as long as
// access.Requests allows.
func (d *Daemon) router(mux *access.Mux) router {
	return func(pattern string, a answer) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			request := r.Method + " " + r.URL.Path
			result, err := d.requests.Do(request, touchesMany(pattern), r.Method != http.MethodGet, func() (any, error) {
				defer endWithPanic(request)
				return a(r)
			})
			d.reply(w, result, lateBody(r, err))
		})
	}
}

// touchesMany reports whether a request for this pattern may touch all flows or
// connections, and therefore may take long.
func touchesMany(pattern string) bool {
	return strings.Contains(pattern, "flows") || strings.Contains(pattern, "conntrack") || strings.Contains(pattern, "hottest")
}
