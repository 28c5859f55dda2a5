// SPDX-License-Identifier: Apache-2.0

package ofswitch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"weft/control/observe"
	"weft/control/ofconn"
	"weft/control/pipeline"
	"weft/datapath"
	"weft/openflow/ofp"
)

// Frames passes the frames that flows send to the controller to OpenFlow connections,
// through a tap of the workers, while a connection wants them.
type Frames struct {
	change   sync.Locker
	pipeline *pipeline.Pipeline
	captures *observe.Captures
	service  *ofconn.Service
	log      *slog.Logger

	stop   context.CancelFunc // nil: stopped
	misses bool               // frames that match no flow come, too
}

// NewFrames returns stopped frames. change is the lock of changes.
func NewFrames(change sync.Locker, pl *pipeline.Pipeline, captures *observe.Captures, log *slog.Logger) *Frames {
	return &Frames{change: change, pipeline: pl, captures: captures, log: log}
}

// Attach sets the connections that get the frames. It comes before Set.
func (f *Frames) Attach(service *ofconn.Service) { f.service = service }

// framesPatience is the time for which a connection waits for its tap. A worker that
// hangs delays the tap for longer.
const framesPatience = time.Second

// Set starts or stops the frames. ofconn calls it from one goroutine at a time.
func (f *Frames) Set(enabled, misses bool) {
	if misses != f.misses {
		f.misses = misses
		f.change.Lock()
		f.pipeline.SendMisses(misses)
		f.change.Unlock()
	}
	if enabled == (f.stop != nil) {
		return
	}
	if f.stop != nil {
		f.stop()
		f.stop = nil
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	ready := make(chan struct{})
	go func() {
		var once sync.Once
		began := func() error { once.Do(func() { close(ready) }); return nil }
		tap := datapath.Tap{Kind: datapath.TapPort, Port: datapath.ControllerPort}
		err := f.captures.Run(ctx, tap, began, func() error { return nil }, func(c *datapath.Capture, _ uint64) error {
			f.packetIn(c)
			return nil
		})
		if err != nil && ctx.Err() == nil {
			f.log.Error("frames for OpenFlow controllers", "error", err)
		}
		_ = began() // a failed start must not delay the connection
	}()
	select {
	case <-ready:
	case <-time.After(framesPatience):
	}
}

// packetIn sends a captured frame to the controllers.
func (f *Frames) packetIn(c *datapath.Capture) {
	inPort := f.pipeline.View().InFlows(c.InPort)
	p := ofp.PacketIn{Frame: c.Data, Total: c.Len, Reason: ofp.ReasonAction, Cookie: ^uint64(0), InPort: inPort}
	note, known := f.pipeline.ControllerNote(c.Note)
	if known {
		p.Reason, p.Table, p.Cookie, p.Userdata = note.ReasonCode(), note.Table, note.Cookie, note.Userdata
		if note.Miss {
			p.Reason = ofp.ReasonMiss
		}
	}
	p.Metadata = note.Metadata(inPort)
	f.service.SendPacketIn(&p, note.ID)
}
