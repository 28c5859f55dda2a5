// SPDX-License-Identifier: Apache-2.0

// Package observe shows what the switch does: captures, live traces, events, hot
// megaflows, traces of hypothetical frames, and metrics. Without a client it costs
// nothing.
//
// Captures.mu and ConnectionEvents.mu are taken before the pipeline's lock
// (Engine.Hold), Monitors.mu after it. The API calls the observers. The pipeline
// reports flows to Monitors.
package observe

import (
	"weft/conntrack"
	"weft/datapath"
)

// Workers has the workers of one engine.
type Workers interface {
	// Broadcast sends a command to all workers, unless their engine has died.
	Broadcast(msg []byte)
	// WaitApplied waits until all commands are applied. An error means that the
	// engine has died.
	WaitApplied() error
	Shared() []*datapath.Shared
	Connections() *conntrack.Memory
}

// Engine gives access to the workers of the present engine.
type Engine interface {
	// Hold returns the present workers, or nil before the first engine. They stay in
	// place and mapped until the caller calls release, once.
	Hold() (w Workers, release func())
}
