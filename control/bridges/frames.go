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

// Frames sends frames to OpenFlow controllers as packet-ins, if flows of a bridge output them to the
// controller. It gets the frames by a capture in the workers. The capture runs while an OpenFlow
// connection of any bridge wants frames. Set and Detach start and stop it while they hold mu.
type Frames struct {
	configuration *change.Configuration
	pipeline      *pipeline.Pipeline
	captures      *observe.Captures
	services      *ofconn.Services
	log           *slog.Logger

	mu      sync.Mutex                         // taken before the configuration lock
	stop    context.CancelFunc                 // stops the capture; nil: no capture runs
	bridges map[*pipeline.Bridge]*bridgeFrames // bridges whose connections have called Set
}

// bridgeFrames has the kinds of frames that the connections of a bridge want.
type bridgeFrames struct {
	enabled bool
	misses  bool // including frames that match no flow
	expired bool // including frames whose TTL has expired
}

// NewFrames returns a Frames that passes captured frames to the OpenFlow services. It begins no capture.
func NewFrames(configuration *change.Configuration, pl *pipeline.Pipeline, captures *observe.Captures, services *ofconn.Services, log *slog.Logger) *Frames {
	return &Frames{configuration: configuration, pipeline: pl, captures: captures, services: services, log: log,
		bridges: map[*pipeline.Bridge]*bridgeFrames{}}
}

// Detach forgets a deleted bridge, after its connections are closed.
func (f *Frames) Detach(b *pipeline.Bridge) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.bridges, b)
	f.follow()
}

// framesPatience limits how long an OpenFlow connection waits for the workers to begin the capture. A
// worker that hangs may take longer.
const framesPatience = time.Second

// Set says which frames the OpenFlow connections of a bridge want. Without "enabled", they want none. With
// "misses", they also want frames that match no flow, and with "expired", frames whose TTL has expired.
// For each bridge, ofconn calls Set from one goroutine at a time.
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

// follow starts or stops the capture, depending on whether any bridge wants frames. The caller holds
// f.mu.
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
		_ = began() // also after a failed start, because follow waits for "ready"
	}()
	select {
	case <-ready:
	case <-time.After(framesPatience):
	}
}

// packetIn sends a captured frame as a packet-in to the controllers of its bridge.
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
		if note.InPort != 0 { // the frame came through a patch port
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
