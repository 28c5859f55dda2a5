// SPDX-License-Identifier: Apache-2.0

// Package observe shows clients what the switch does: captures and live traces of
// frames, events of flows, connections and ports, the megaflows with the highest
// rates, traces of hypothetical frames, and metrics. Without a client it costs
// nothing.
//
// Each observer has a lock for its clients: Captures.mu, ConnectionEvents.mu,
// Monitors.mu. The first two are taken before the pipeline's lock, which Engine.Hold
// takes. Monitors.mu is taken last, after the pipeline's lock. The handlers of the
// API call the observers; the pipeline reports changed flows to Monitors through an
// interface of its own.
package observe

import (
	"weft/conntrack"
	"weft/datapath"
)

// Workers has the workers of one engine: their command rings, and the memory that
// they share with control.
type Workers interface {
	// Broadcast sends a command to all workers. It discards the command if their
	// engine has died.
	Broadcast(msg []byte)
	// WaitApplied waits until the workers have applied all commands sent so far. An
	// error means that the engine has died.
	WaitApplied() error
	Shared() []*datapath.Shared
	Connections() *conntrack.Memory
}

// Engine gives access to the workers of the present engine.
type Engine interface {
	// Hold returns the present workers, or nil before the first engine. Until the
	// caller calls release, which it must do once, the workers are not replaced and
	// their memory stays mapped.
	Hold() (w Workers, release func())
}
