// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"encoding/json"
	"net/http"
	"time"

	"weft/api"
	"weft/conntrack"
	"weft/control/access"
	"weft/control/observe"
	"weft/control/usererr"
)

func (h *Handlers) conntrackRoutes(mux *access.Mux, route router) {
	mux.HandleFunc("GET /v1/conntrack", h.dumpConnections)
	route("DELETE /v1/conntrack", func(r *http.Request) (any, error) {
		filter, err := conntrack.ParseFilter(r.URL.Query()["arg"])
		if err != nil {
			return nil, usererr.Mark(err)
		}
		n, err := h.Tracking.Flush(&filter)
		if err != nil {
			return nil, err
		}
		return api.ConnectionsChanged{Connections: n}, nil
	})
	route("GET /v1/conntrack/expectations", func(r *http.Request) (any, error) {
		var args []string
		if zone := r.URL.Query().Get("zone"); zone != "" {
			args = []string{"zone=" + zone}
		}
		filter, err := conntrack.ParseFilter(args)
		if err != nil {
			return nil, usererr.Mark(err)
		}
		list := []api.Expectation{}
		h.Tracking.EachExpected(filter.Zone, func(e *conntrack.Expected) { list = append(list, observe.Expectation(e)) })
		return list, nil
	})
	route("GET /v1/conntrack/settings", func(*http.Request) (any, error) { return h.Tracking.Settings() })
	route("POST /v1/conntrack/settings", withBody(func(_ *http.Request, c *api.ChangeConntrack) (any, error) {
		return struct{}{}, h.Tracking.Change(c)
	}))
}

// pagerPatience is the longest time for which the client of a dump may stop reading, because a
// person may page through the dump. The dump holds no lock meanwhile.
const pagerPatience = 5 * time.Minute

// dumpConnections sends the tracked connections as JSON or as text of ovs-dpctl dump-conntrack.
func (h *Handlers) dumpConnections(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	filter, err := conntrack.ParseFilter(q["arg"])
	if err != nil {
		h.reply(w, nil, usererr.Mark(err))
		return
	}
	options := conntrack.FormatOptions{More: q.Get("more") == "true", Statistics: q.Get("statistics") == "true"}
	asJSON := q.Get("json") == "true"
	var line, lines []byte
	control := http.NewResponseController(w)
	h.Tracking.Each(&filter, func(e *conntrack.Entry) {
		line = e.AppendTo(line[:0], options)
		if asJSON {
			line, _ = json.Marshal(observe.Connection(e, string(line)))
		}
		lines = append(append(lines, line...), '\n')
	}, func() bool {
		_ = control.SetWriteDeadline(time.Now().Add(pagerPatience)) // fails only in tests without deadlines
		_, err := w.Write(lines)
		lines = lines[:0]
		return err == nil
	})
}
