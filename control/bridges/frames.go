// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"weft/control/change"
	"weft/control/observe"
	"weft/control/ofconn"
	"weft/control/pipeline"
	"weft/datapath"
	"weft/openflow/ofp"
)

// Frames sends the frames that flows output to the controller to OpenFlow connections of
// the flows' bridge. It gets them from a capture of the workers, which exists while a connection
// of any bridge wants the frames. The goroutine of control/ofconn that calls Set owns the capture.
type Frames struct {
	configuration *change.Configuration
	pipeline      *pipeline.Pipeline
	captures      *observe.Captures
	services      *ofconn.Services
	log           *slog.Logger

	mu      sync.Mutex                         // taken before the configuration lock
	stop    context.CancelFunc                 // nil: stopped
	bridges map[*pipeline.Bridge]*bridgeFrames // of bridges whose connections have wanted frames
}

// bridgeFrames is what the connections of one bridge want.
type bridgeFrames struct {
	enabled bool
	misses  bool // frames that match no flow come, too
	expired bool // frames whose TTL has expired come, too
}

// NewFrames returns a Frames without a capture, which passes the frames to services.
func NewFrames(configuration *change.Configuration, pl *pipeline.Pipeline, captures *observe.Captures, services *ofconn.Services, log *slog.Logger) *Frames {
	return &Frames{configuration: configuration, pipeline: pl, captures: captures, services: services, log: log,
		bridges: map[*pipeline.Bridge]*bridgeFrames{}}
}

// Detach forgets a bridge whose connections are closed.
func (f *Frames) Detach(b *pipeline.Bridge) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.bridges, b)
	f.follow()
}

// framesPatience is how long an OpenFlow connection waits until the capture of the workers
// is set. A worker that hangs may delay the capture for longer.
const framesPatience = time.Second

// Set starts or stops the frames of a bridge. ofconn calls it from one goroutine of the
// bridge at a time.
func (f *Frames) Set(b *pipeline.Bridge, enabled, misses, expired bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.bridges[b]
	if own == nil {
		own = &bridgeFrames{}
		f.bridges[b] = own
	}
	if misses != own.misses || expired != own.expired {
		own.misses, own.expired = misses, expired
		f.configuration.Do(func(tx *change.Tx) { b.SendExceptions(tx, misses, expired) })
	}
	own.enabled = enabled
	f.follow()
}

// follow starts or stops the capture. The caller holds f.mu.
func (f *Frames) follow() {
	enabled := false
	for _, own := range f.bridges {
		enabled = enabled || own.enabled
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
		capture := datapath.Capture{Kind: datapath.CapturePort, Port: datapath.ControllerPort}
		err := f.captures.Run(ctx, capture, began, func() error { return nil }, func(c *datapath.Captured, _ uint64) error {
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

// packetIn sends a captured frame to the controllers of its bridge.
func (f *Frames) packetIn(c *datapath.Captured) {
	info, _ := f.pipeline.View().PortAt(c.InPort)
	bridge, inPort := info.Bridge, f.pipeline.View().InFlows(c.InPort)
	p := ofp.PacketIn{Frame: c.Data, Total: c.Len, Reason: ofp.ReasonAction, Cookie: ^uint64(0)}
	note, known := f.pipeline.ControllerNote(c.Note)
	if known {
		bridge = note.Bridge
		p.Reason, p.Table, p.Cookie, p.Userdata = note.ReasonCode(), note.Table, note.Cookie, note.Userdata
		if note.Miss {
			p.Reason = ofp.ReasonMiss
		}
		if note.InPort != 0 { // it came through a patch port
			inPort = note.InPort
		}
	}
	if note.Continuation != "" {
		p.Continuation = f.pipeline.Seal(c.InPort, note.Continuation)
	}
	p.InPort, p.Metadata = inPort, note.Metadata(inPort, c.FrameKey())
	if service := f.services.Of(bridge); service != nil {
		p.TLVs = f.pipeline.TLVsOf(bridge)
		service.SendPacketIn(&p, c.InPort, note.ID)
	}
}
