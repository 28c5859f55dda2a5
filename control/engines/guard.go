// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

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

// answered calls request, which waits for an engine that no guard watches yet. If the
// engine's server hangs meanwhile, it is killed, and request returns ErrGone.
func (es *Engines) answered(client Client, request func() error) error {
	over, end := make(chan struct{}), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-client.Gone():
		case <-end:
		}
		close(over)
	})
	watching.Go(func() {
		h, hung := watchdog.Watch(watchdog.Engine{PID: client.PID(), Pending: client.Pending, Gone: over})
		if hung {
			client.Condemn()
			es.SetTrouble(h.Text(es.portNameNow) + "; weftd is replacing the engine")
		}
	})
	err := request()
	close(end)
	watching.Wait()
	return err
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

// Unanswered describes the request that the engine has not answered for the given
// time. It returns "" if there is none. It does not block.
func (es *Engines) Unanswered(after time.Duration) string {
	c := es.Current()
	if c == nil {
		return ""
	}
	r := c.Pending()
	waited := time.Since(r.Since)
	if r.Number == 0 || waited < after {
		return ""
	}
	text := fmt.Sprintf("the engine has not answered the request %q for %.1f s", r.Op, waited.Seconds())
	if r.Port != 0 {
		text += ", which is about port " + es.portNameNow(r.Port)
	}
	return text
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
