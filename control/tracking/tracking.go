// SPDX-License-Identifier: Apache-2.0

// Package tracking lists, ends and configures the tracked connections. The connection table is shared
// memory: the control process reads the table and writes its settings; worker 0 ends connections.
package tracking

import (
	"slices"
	"sync"

	"weft/conntrack"
	"weft/control/change"
	"weft/control/limits"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/clock"
)

// dumpChunk is the number of records of the connection table, used or free, that Each reads before it
// releases the workers for a moment, so that they can be replaced.
const dumpChunk = 8192

// Engine gives access to the workers of the running engine process.
type Engine interface {
	// Hold returns the present workers, or nil before the first engine. They are not
	// replaced until the caller calls release.
	Hold() (w *workers.Workers, release func())
}

// Connections gives access to the connection table of the present engine.
type Connections struct {
	configuration *change.Configuration
	engine        Engine
	settings      sync.Mutex // allows one change of settings at a time; taken before Engine.Hold
}

// New returns access to the connection table of the engine's present workers.
func New(configuration *change.Configuration, engine Engine) *Connections {
	return &Connections{configuration: configuration, engine: engine}
}

// hold returns the present connection table, which stays mapped until the caller calls
// release.
func (c *Connections) hold() (m *conntrack.Memory, release func(), err error) {
	w, release := c.engine.Hold()
	if w == nil {
		release()
		return nil, nil, workers.ErrGone
	}
	return w.Connections(), release, nil
}

// Each calls visit for each connection that filter selects. It holds the workers meanwhile, so that they
// are not replaced. After every dumpChunk records of the table, it releases them and calls pause, which
// returns false to stop.
func (c *Connections) Each(filter *conntrack.Filter, visit func(*conntrack.Entry), pause func() bool) {
	for from, more := uint32(0), true; more; from += dumpChunk {
		m, release, err := c.hold()
		if err != nil {
			return
		}
		more = m.EachIn(from, from+dumpChunk, clock.Monotonic(), func(e *conntrack.Entry) bool {
			if filter.Match(e) {
				visit(e)
			}
			return true
		})
		release()
		more = pause() && more
	}
}

// EachExpected calls visit for each expected connection (announced by another one) of a
// zone. If zone is nil, it visits all zones.
func (c *Connections) EachExpected(zone *uint16, visit func(*conntrack.Expected)) {
	c.Read(func(m *conntrack.Memory) {
		m.EachExpected(clock.Monotonic(), func(e *conntrack.Expected) {
			if zone == nil || *zone == e.Tuple.Zone {
				visit(e)
			}
		})
	})
}

// Flush ends the connections that filter selects, and returns their number. If it
// returns workers.ErrGone, some of them may have ended.
func (c *Connections) Flush(filter *conntrack.Filter) (n int, err error) {
	var refs []conntrack.Ref
	c.Each(filter, func(e *conntrack.Entry) { refs = append(refs, e.Ref) }, func() bool { return true })
	// The workers are not replaced while this transaction is open.
	return change.Result(c.configuration, func(tx *change.Tx) (n int, err error) {
		w, release := c.engine.Hold()
		release()
		if w == nil || w.Gone() {
			return 0, workers.ErrGone
		}
		for some := range slices.Chunk(refs, datapath.MaxEnds) {
			if !w.Push(0, datapath.AppendEndConnections(nil, some)) {
				return 0, workers.ErrGone
			}
		}
		if err := w.WaitApplied(); err != nil {
			return 0, err
		}
		return len(refs), nil
	})
}

// Read calls visit with the connection table. It does nothing before the first engine.
func (c *Connections) Read(visit func(m *conntrack.Memory)) {
	if m, release, err := c.hold(); err == nil {
		defer release()
		visit(m)
	}
}

// LimitRows emits the rows of `weft show limits` about tracked and expected connections.
func (c *Connections) LimitRows(emit func(limits.Row)) {
	c.Read(func(m *conntrack.Memory) { limitRows(m, emit) })
}
