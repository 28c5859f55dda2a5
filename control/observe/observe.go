// SPDX-License-Identifier: Apache-2.0

// Package observe shows what the switch does: captures, live traces, events, the
// hottest megaflows, traces of hypothetical frames, and metrics. While no client asks
// for them, the package costs nothing.
//
// Captures.mu and ConnectionEvents.mu are taken before the pipeline's lock
// (Engine.Hold), Monitors.mu after it. The API calls this package. The pipeline reports
// changes of flows to Monitors.
package observe

import (
	"weft/conntrack"
	"weft/datapath"
)

// Workers has the workers of one engine.
type Workers interface {
	// Broadcast sends a command to all workers, unless their engine has died.
	Broadcast(msg []byte)
	// WaitApplied waits until the workers have applied all commands. An error means
	// that the engine has died.
	WaitApplied() error
	Shared() []*datapath.Shared
	Connections() *conntrack.Memory
}

// Engine gives access to the workers of the running engine process.
type Engine interface {
	// Hold returns the present workers, or nil before the first engine. They are neither replaced nor
	// unmapped until the caller calls release, which it must do exactly once.
	Hold() (w Workers, release func())
}
