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

// Frames sends the frames that flows output to the controller to OpenFlow connections.
// It gets them from a tap of the workers, which exists while a connection wants the
// frames.
type Frames struct {
	change   sync.Locker
	pipeline *pipeline.Pipeline
	captures *observe.Captures
	service  *ofconn.Service
	log      *slog.Logger

	stop   context.CancelFunc // nil: stopped
	misses bool               // frames that match no flow come, too
}

// NewFrames returns a Frames without a tap. change is the lock of changes.
func NewFrames(change sync.Locker, pl *pipeline.Pipeline, captures *observe.Captures, log *slog.Logger) *Frames {
	return &Frames{change: change, pipeline: pl, captures: captures, log: log}
}

// Attach sets the OpenFlow connections that get the frames. The caller calls it before
// Set.
func (f *Frames) Attach(service *ofconn.Service) { f.service = service }

// framesPatience is how long an OpenFlow connection waits until the tap of the workers
// is set. A worker that hangs may delay the tap for longer.
const framesPatience = time.Second

// Set starts or stops the tap. ofconn calls Set from one goroutine at a time.
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
		_ = began() // after a failed start, the connection must not wait for ready
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
