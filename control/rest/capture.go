// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"
	"time"

	"weft/api"
	"weft/control/access"
	"weft/control/change"
	"weft/control/observe"
	"weft/control/usererr"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow"
	"weft/packet"
)

// captureOf parses the parameters of GET /v1/capture: which frames the workers copy for the
// client.
func (h *Handlers) captureOf(r *http.Request) (datapath.Capture, error) {
	q := r.URL.Query()
	capture := datapath.Capture{Kind: datapath.CapturePort}
	name := q.Get("port")
	switch drops, err := truthOf(q, "drops"); {
	case err != nil:
		return capture, err
	case drops:
		capture.Kind = datapath.CaptureDrops
	case name == "":
		return capture, usererr.Errorf("port: expected a port's name, or drops=true")
	}
	if name != "" {
		no, ok := h.Pipeline.View().DatapathByName(name)
		if !ok && name == "controller" {
			no, ok = datapath.ControllerPort, true
		}
		if !ok {
			var err error
			h.Configuration.View(func(tx *change.Tx) { err = h.Pipeline.View().NoPort(name) })
			return capture, err
		}
		capture.Port = no
	}
	snap, err := numberOf(q, "snap")
	capture.Snap = uint32(snap)
	if err == nil {
		capture.Limit, err = numberOf(q, "limit")
	}
	return capture, err
}

// TraceOf parses the parameters of GET /v1/trace/live: which frames the workers trace and copy
// for the client.
func (h *Handlers) TraceOf(r *http.Request) (datapath.Capture, error) {
	q := r.URL.Query()
	capture := datapath.Capture{Kind: datapath.CaptureTrace, Snap: packet.InnerHeader}
	b, err := h.bridgeOf(r)
	if err != nil {
		return capture, err
	}
	view := b.Pipeline.View()
	mod, err := openflow.ParseFilter(q.Get("match"), view)
	if err != nil {
		return capture, usererr.Mark(err)
	}
	if mod.Table != openflow.TableAll || mod.CookieMask != 0 || mod.ByOutPort || mod.ByOutGroup {
		return capture, usererr.Errorf("match %s: expected fields of frames, no table, cookie, out_port or out_group", q.Get("match"))
	}
	match := mod.Match.Unpack()
	if at := view.Datapath(match.Value.Key().InPort()); at != 0 { // workers know the number in the data path
		match.Value.Key().SetInPort(at)
	}
	for i, mask := range match.Mask {
		switch {
		case i < flowtable.KeyWords:
			capture.Mask[i], capture.Key[i] = mask, match.Value[i]
		case mask != 0:
			return capture, usererr.Errorf("match %s: expected fields of frames, which have neither registers nor metadata", q.Get("match"))
		}
	}
	capture.Limit, err = numberOf(q, "limit")
	return capture, err
}

// streamCapture sends captured frames as JSON until the client disconnects.
func (h *Handlers) streamCapture(w http.ResponseWriter, r *http.Request, capture datapath.Capture) {
	out := newStream(w)
	wall := time.Now().Add(-time.Duration(clock.Monotonic()))
	begun := false
	payload := access.PeerOf(r.Context()).Role >= access.Write
	h.Pipeline.PauseOffload() // offloaded frames do not pass the workers, so the capture would lack them
	defer h.Pipeline.ResumeOffload()
	err := h.Captures.Run(r.Context(), capture, func() error { begun = true; return out.begin() }, out.flush,
		func(f *datapath.Captured, lost uint64) error {
			c := h.captured(f, lost, wall)
			if !payload {
				c.Data = nil
			}
			return out.send(c)
		})
	if err != nil && !begun {
		h.reply(w, nil, err)
	}
}

// captured converts a captured frame to the API's form. wallBase is the wall-clock time at
// which CLOCK_MONOTONIC was 0.
func (h *Handlers) captured(f *datapath.Captured, lost uint64, wallBase time.Time) *api.Captured {
	c := observe.Captured(f, h.Pipeline.View(), wallBase)
	c.Lost = lost
	if c.Trace != nil {
		c.Trace.Megaflow = h.Bridges.Megaflows().HitMegaflow(f)
	}
	return c
}

func (h *Handlers) captureRoutes(mux *access.Mux) {
	captures := map[string]func(*http.Request) (datapath.Capture, error){
		"GET /v1/capture": h.captureOf, "GET /v1/trace/live": h.TraceOf,
	}
	for pattern, captureOf := range captures {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			capture, err := captureOf(r)
			if err != nil {
				h.reply(w, nil, err)
				return
			}
			h.streamCapture(w, r, capture)
		})
	}
}
