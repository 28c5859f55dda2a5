// SPDX-License-Identifier: Apache-2.0

// Package tracking lists, ends and configures the tracked connections. The connection
// table is in memory that control shares with the engine: control reads the table and
// writes its settings, and worker 0 ends connections for control.
package tracking

import (
	"slices"
	"sync"

	"weft/conntrack"
	"weft/control/limits"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/clock"
)

// dumpChunk is the number of connections that Each visits before it releases the
// workers for a moment.
const dumpChunk = 8192

// Engine gives access to the present workers.
type Engine interface {
	// Hold returns the present workers, or nil before the first engine. The workers
	// are not replaced until the caller calls release.
	Hold() (w *workers.Workers, release func())
}

// Connections is the connection table of the present engine.
type Connections struct {
	change   sync.Locker
	engine   Engine
	settings sync.Mutex // taken before the engine is held; allows one change of settings at a time
}

// New returns the connections of an engine. change is the lock of changes.
func New(change sync.Locker, engine Engine) *Connections {
	return &Connections{change: change, engine: engine}
}

// hold returns the present table. The table stays mapped until the caller calls
// release.
func (c *Connections) hold() (m *conntrack.Memory, release func(), err error) {
	w, release := c.engine.Hold()
	if w == nil {
		release()
		return nil, nil, workers.ErrGone
	}
	return w.Connections(), release, nil
}

// Each calls visit, with the workers held, for each connection that filter selects.
// After every dumpChunk connections it releases the workers, calls pause, and stops if
// pause returns false.
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

// Flush ends the connections that filter selects, and returns their number once they
// have ended. The error workers.ErrGone means that the engine died: before the flush,
// so that no connection was ended, or during the flush, so that some may have been.
func (c *Connections) Flush(filter *conntrack.Filter) (n int, err error) {
	var refs []conntrack.Ref
	c.Each(filter, func(e *conntrack.Entry) { refs = append(refs, e.Ref) }, func() bool { return true })
	c.change.Lock() // this lock keeps the workers from being replaced during the flush
	defer c.change.Unlock()
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
}

// Read calls read with the connection table, so that the caller can read the table's
// counters. It does nothing before the first engine.
func (c *Connections) Read(read func(m *conntrack.Memory)) {
	if m, release, err := c.hold(); err == nil {
		defer release()
		read(m)
	}
}

// LimitRows is a limits.Source. It emits the limit rows of tracked connections.
func (c *Connections) LimitRows(emit func(limits.Row)) {
	c.Read(func(m *conntrack.Memory) { limitRows(m, emit) })
}
