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

// A hung engine is replaced in two steps. First guardEngine kills the engine without
// taking a lock. Goroutines that wait for the engine, perhaps with the lock of
// changes held, then continue. Second, Supervise replaces the engine as after a
// crash, but holds back the ports on which the engine hung.

// replacements has numbers of replaced engines, by reason.
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

// guard watches one engine for hangs. hang is set if the guard has killed the engine.
// done is closed once the guard no longer reads the engine's memory.
type guard struct {
	hang atomic.Pointer[watchdog.Hang]
	done chan struct{}
}

// guardEngine watches the engine with workers w in a goroutine, and kills the engine
// if it hangs.
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

// SetTrouble sets the reason why API requests must wait. The reason applies until the
// engine is replaced.
func (es *Engines) SetTrouble(why string) { es.trouble.Store(&why) }

// Troubled returns the reason that SetTrouble has set, or "" after a replacement of
// the engine.
func (es *Engines) Troubled() string {
	if why := es.trouble.Load(); why != nil {
		return *why
	}
	return ""
}

// portNameNow returns a port's name without waiting for a lock. If the lock is taken,
// it returns the port's number.
func (es *Engines) portNameNow(number uint32) string {
	if view := es.pipeline.ViewNow(); view != nil {
		if name, ok := view.PortName(number); ok {
			return name
		}
	}
	return fmt.Sprint(number)
}

// endOld makes sure that an engine no longer uses any ring and does not block the
// start of the next engine. The caller holds the lock of changes.
func (es *Engines) endOld(old Client) error {
	err := old.Kill()
	if !errors.Is(err, engine.ErrStuck) {
		return err
	}
	es.log.Error("the old engine's process does not end, starting another engine anyway", "error", err)
	if es.spare != nil { // The spare cannot start either: it waits for the lock that the stuck engine holds.
		es.spare.Abandon()
		es.spare = nil
	}
	return engine.Disown(es.dir)
}
