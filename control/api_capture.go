// SPDX-License-Identifier: Apache-2.0

package control

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

// captureTap returns the tap of GET /v1/capture: the selection of frames that workers
// copy.
func (d *Daemon) captureTap(r *http.Request) (datapath.Tap, error) {
	q := r.URL.Query()
	tap := datapath.Tap{Kind: datapath.TapPort}
	name := q.Get("port")
	switch drops, err := truthOf(q, "drops"); {
	case err != nil:
		return tap, err
	case drops:
		tap.Kind = datapath.TapDrops
	case name == "":
		return tap, usererr.Errorf("port: expected a port's name, or drops=true")
	}
	if name != "" {
		no, ok := d.pipeline.View().DatapathByName(name)
		if !ok && name == "controller" {
			no, ok = datapath.ControllerPort, true
		}
		if !ok {
			var err error
			d.configuration.View(func(tx *change.Tx) { err = d.pipeline.View().NoPort(name) })
			return tap, err
		}
		tap.Port = no
	}
	snap, err := numberOf(q, "snap")
	tap.Snap = uint32(snap)
	if err == nil {
		tap.Limit, err = numberOf(q, "limit")
	}
	return tap, err
}

// traceTap returns the tap of GET /v1/trace/live: the selection of frames that
// workers copy.
func (d *Daemon) traceTap(r *http.Request) (datapath.Tap, error) {
	q := r.URL.Query()
	tap := datapath.Tap{Kind: datapath.TapTrace, Snap: packet.InnerHeader}
	b, err := d.bridgeOf(r)
	if err != nil {
		return tap, err
	}
	view := b.Pipeline.View()
	mod, err := openflow.ParseFilter(q.Get("match"), view)
	if err != nil {
		return tap, usererr.Mark(err)
	}
	if mod.Table != openflow.TableAll || mod.CookieMask != 0 || mod.ByOutPort || mod.ByOutGroup {
		return tap, usererr.Errorf("match %s: expected fields of frames, no table, cookie, out_port or out_group", q.Get("match"))
	}
	match := mod.Match.Unpack()
	if at := view.Datapath(match.Value.Key().InPort()); at != 0 { // workers know the number in the data path
		match.Value.Key().SetInPort(at)
	}
	for i, mask := range match.Mask {
		switch {
		case i < flowtable.KeyWords:
			tap.Mask[i], tap.Key[i] = mask, match.Value[i]
		case mask != 0:
			return tap, usererr.Errorf("match %s: expected fields of frames, which have neither registers nor metadata", q.Get("match"))
		}
	}
	tap.Limit, err = numberOf(q, "limit")
	return tap, err
}

// streamCapture sends captured frames as JSON until the client disconnects.
func (d *Daemon) streamCapture(w http.ResponseWriter, r *http.Request, tap datapath.Tap) {
	out := newStream(w)
	wall := time.Now().Add(-time.Duration(clock.Monotonic()))
	begun := false
	payload := access.PeerOf(r.Context()).Role >= access.Write
	d.pipeline.PauseOffload() // the capture sees the workers' frames only
	defer d.pipeline.ResumeOffload()
	err := d.captures.Run(r.Context(), tap, func() error { begun = true; return out.begin() }, out.flush,
		func(f *datapath.Capture, lost uint64) error {
			c := d.captured(f, lost, wall)
			if !payload {
				c.Data = nil
			}
			return out.send(c)
		})
	if err != nil && !begun {
		d.reply(w, nil, err)
	}
}

// captured converts a captured frame to the API's form. wall is the wall-clock time at
// which CLOCK_MONOTONIC was 0.
func (d *Daemon) captured(f *datapath.Capture, lost uint64, wall time.Time) *api.Captured {
	c := observe.Captured(f, d.pipeline.View(), wall)
	c.Lost = lost
	if c.Trace != nil {
		c.Trace.Megaflow = d.megaflows().HitMegaflow(f)
	}
	return c
}

func (d *Daemon) captureRoutes(mux *access.Mux) {
	taps := map[string]func(*http.Request) (datapath.Tap, error){
		"GET /v1/capture": d.captureTap, "GET /v1/trace/live": d.traceTap,
	}
	for pattern, tapOf := range taps {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			tap, err := tapOf(r)
			if err != nil {
				d.reply(w, nil, err)
				return
			}
			d.streamCapture(w, r, tap)
		})
	}
}
