// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"sync/atomic"

	"weft/control/watchdog"
	"weft/control/workers"
	"weft/engine"
)

// A hung engine is replaced in two steps. guardEngine kills the engine without taking
// a lock, so whoever waits for the engine, perhaps with the lock of changes, can
// continue. Supervise then replaces the engine as after a death, and leaves out the
// ports to blame.

// replacements has the numbers of replaced engines, by reason.
type replacements struct {
	died, worker, server atomic.Uint64
}

func (r *replacements) count(h *watchdog.Hang) {
	switch {
	case h == nil:
		r.died.Add(1)
	case h.Worker == watchdog.NoWorker:
		r.server.Add(1)
	default:
		r.worker.Add(1)
	}
}

// guard watches one engine for a hang. hang is set if the guard killed the engine.
// done is closed once the guard no longer reads the engine's memory.
type guard struct {
	hang atomic.Pointer[watchdog.Hang]
	done chan struct{}
}

// guardEngine starts to watch the engine of w, and kills it if it hangs.
func (es *Engines) guardEngine(w *workers.Workers, client Client) *guard {
	g := &guard{done: make(chan struct{})}
	go func() {
		defer close(g.done)
		h, hung := watchdog.Watch(watchdog.Engine{
			PID: client.PID(), Workers: w.Shared(), Pending: client.Pending, Gone: client.Gone(),
		})
		if hung {
			g.hang.Store(&h)
			client.Condemn()
			es.SetTrouble(h.Text(es.portNameNow) + "; weftd is replacing the engine")
		}
	}()
	return g
}

// SetTrouble sets the reason why requests have to wait, until the engine is replaced.
func (es *Engines) SetTrouble(why string) { es.trouble.Store(&why) }

// Troubled returns the reason set by SetTrouble, or "" if it no longer applies.
func (es *Engines) Troubled() string {
	if why := es.trouble.Load(); why != nil {
		return *why
	}
	return ""
}

// portNameNow returns a port's name, or its number if the name is not available
// without waiting.
func (es *Engines) portNameNow(number uint32) string {
	if view := es.pipeline.ViewNow(); view != nil {
		if name, ok := view.PortName(number); ok {
			return name
		}
	}
	return fmt.Sprint(number)
}

// endOld makes sure that an engine no longer uses any ring and does not block the
// next one. The caller holds the lock of changes.
func (es *Engines) endOld(old Client) error {
	err := old.Kill()
	if !errors.Is(err, engine.ErrStuck) {
		return err
	}
	es.log.Error("the old engine's process stays, another takes its place all the same", "error", err)
	if es.spare != nil { // the spare waits for the lock of the stuck engine, whose parent reaps it
		es.spare.Abandon()
		es.spare = nil
	}
	return engine.Disown(es.dir)
}
