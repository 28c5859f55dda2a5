package engines

import (
	"errors"
	"fmt"
	"sync/atomic"

	"weft/control/watchdog"
	"weft/control/workers"
	"weft/engine"
)

// A hung engine is replaced in two steps. guardEngine kills it and takes no lock: so
// whoever waits for it, perhaps with the lock of changes held, goes on. supervise then
// replaces it like one that has died, and leaves the ports that are to blame out.

// replacements counts the engines that were replaced, by reason.
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

// guard watches one engine for hanging. Its hang is why it killed the engine, nil if it
// did not; done is closed once it no longer reads the engine's memory.
type guard struct {
	hang atomic.Pointer[watchdog.Hang]
	done chan struct{}
}

// guardEngine kills the engine of w if it hangs.
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

// SetTrouble says what keeps requests from being answered until the engine is replaced.
func (es *Engines) SetTrouble(why string) { es.trouble.Store(&why) }

// Troubled is what setTrouble said, "" once it is over.
func (es *Engines) Troubled() string {
	if why := es.trouble.Load(); why != nil {
		return *why
	}
	return ""
}

// portNameNow is a port's name, or its number where it cannot be had without waiting.
func (es *Engines) portNameNow(number uint32) string {
	if view := es.pipeline.ViewNow(); view != nil {
		if name, ok := view.PortName(number); ok {
			return name
		}
	}
	return fmt.Sprint(number)
}

// endOld makes sure that an engine uses no ring any more and holds up no other one.
// Caller holds change.
func (es *Engines) endOld(old Client) error {
	err := old.Kill()
	if !errors.Is(err, engine.ErrStuck) {
		return err
	}
	es.log.Error("the old engine's process stays, another takes its place all the same", "error", err)
	if es.spare != nil { // it waits for the lock of the stuck one, whose parent reaps it
		es.spare.Abandon()
		es.spare = nil
	}
	return engine.Disown(es.dir)
}
