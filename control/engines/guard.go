// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"weft/control/change"
	"weft/control/watchdog"
	"weft/control/workers"
	"weft/engine"
	"weft/internal/cpu"
)

// This file kills a hung engine without taking a lock, so that goroutines that wait for the engine
// continue. Supervise then replaces the engine. The new engine does not get ports that made the old
// one hang.

// replacements counts replaced engines by reason.
type replacements struct {
	died, worker, server atomic.Uint64
}

func (r *replacements) count(h *watchdog.Hang) {
	switch {
	case h == nil || h.Exiting:
		r.died.Add(1)
	case h.Worker == watchdog.NoWorker:
		r.server.Add(1)
	default:
		r.worker.Add(1)
	}
}

// guard watches one engine. hang is set if guard has killed the engine, and says why. done is closed
// when guard no longer reads the engine's memory.
type guard struct {
	hang atomic.Pointer[watchdog.Hang]
	done chan struct{}
}

// guardEngine starts a goroutine that kills the engine of client if the engine or one of its workers w
// hangs.
func (es *Engines) guardEngine(w *workers.Workers, client Client) *guard {
	g := &guard{done: make(chan struct{})}
	go func() {
		defer close(g.done)
		h, hung := watchdog.Watch(watchdog.Engine{
			PID: client.PID(), Workers: w.Shared(), Pending: client.Pending, Files: es.ports.MemoryFiles, Gone: client.Gone(),
		})
		if hung {
			g.hang.Store(&h)
			_ = cpu.Urgent() // until Supervise has replaced the engine; its process may end much later
			client.Condemn()
			es.SetTrouble(h.Text(es.portNameNow) + "; weftd is replacing the engine")
		}
	}()
	return g
}

// answered calls request, which sends a request to an engine that the watchdog does not watch yet. If the
// engine hangs before it has answered, answered kills it, and request returns ErrGone.
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

// SetTrouble sets the reason why API requests must wait. It is valid until the engine is replaced.
func (es *Engines) SetTrouble(reason string) { es.trouble.Store(&reason) }

// Troubled returns the reason of SetTrouble, or "" if there is none.
func (es *Engines) Troubled() string {
	if reason := es.trouble.Load(); reason != nil {
		return *reason
	}
	return ""
}

// Unanswered describes the request of the control process that the engine has not answered within limit.
// It returns "" if there is no such request. It does not block.
func (es *Engines) Unanswered(limit time.Duration) string {
	c := es.Current()
	if c == nil {
		return ""
	}
	r := c.Pending()
	waited := time.Since(r.Since)
	if r.Number == 0 || waited < limit {
		return ""
	}
	text := fmt.Sprintf("the engine has not answered the request %q for %.1f s", r.Op, waited.Seconds())
	if r.Port != 0 {
		text += ", which is about port " + es.portNameNow(r.Port)
	}
	return text
}

// portNameNow returns the name of a port. It never waits: if a lock is taken, it returns the port
// number.
func (es *Engines) portNameNow(number uint32) string {
	if view := es.pipeline.ViewNow(); view != nil {
		if name, ok := view.PortName(number); ok {
			return name
		}
	}
	return fmt.Sprint(number)
}

// endOld ends an old engine. When it returns nil, the old engine uses no ring of a port any more, and
// does not block the next engine, even if its process still exists.
func (es *Engines) endOld(_ *change.Tx, old Client) error {
	err := old.Quiesce()
	if !errors.Is(err, engine.ErrStuck) {
		return err
	}
	es.log.Info("the next engine does not wait for the end of the old one's process", "reason", err)
	if s := es.spare; s != nil {
		if err = s.Succeed(es.dir); err == nil {
			return nil
		}
		es.log.Warn("the spare engine cannot succeed a stuck one, starting another", "error", err)
		s.Abandon() // it waits for a lock that the stuck engine holds
		es.spare = nil
	}
	return engine.Disown(es.dir)
}
