// Package observe shows what the switch does to whoever asks: captures and live traces
// of frames, events of flows, connections and ports, the megaflows with the highest
// rates, traces of frames that do not exist, and metrics. Nobody asking, it costs
// nothing.
//
// Each observer owns its clients under a lock of its own: Captures.mu,
// ConnectionEvents.mu, Monitors.mu. The locks of Captures and ConnectionEvents are
// taken before the pipeline's lock, which they take through Engine; Monitors.mu is
// taken last, inside the pipeline's lock. The handlers of the API call the observers;
// the pipeline tells Monitors of changed flows through an interface of its own.
package observe

import (
	"weft/conntrack"
	"weft/datapath"
)

// Workers are the workers of one engine: their command rings, and the memory that they
// share with control.
type Workers interface {
	// Broadcast sends a command to all workers, unless their engine has died.
	Broadcast(msg []byte)
	// WaitApplied waits until the commands sent so far are in force; its error says
	// that the engine has died.
	WaitApplied() error
	Shared() []*datapath.Shared
	Connections() *conntrack.Memory
}

// Engine gives the workers of the present engine.
type Engine interface {
	// Hold returns the present workers, nil before the first engine. They are not
	// replaced and their memory stays mapped until release, which the caller calls once.
	Hold() (w Workers, release func())
}
