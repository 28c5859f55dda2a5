// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"time"

	"weft/control/loop"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow"
)

// The first frame with a learn action is held until the new flow is in the tables, so
// that a reply finds the flow. Statistics refresh the flow later. Learned flows are
// not saved.

const (
	// learnQueue limits the queued lessons. Beyond it, a frame is forwarded at once,
	// and statistics add its flows later.
	learnQueue = 1024
	// learnBatch limits the lessons of one batch. Each batch revalidates the
	// megaflows once.
	learnBatch = 256
)

// lesson has the flows of a frame's learn actions, and the frame if a worker holds
// it.
type lesson struct {
	flows   []openflow.FlowMod
	workers *workers.Workers // nil: no frame waits
	held    underlay.HeldFrame
	miss    *datapath.Upcall
}

// learnFirst queues a held frame that adds flows. It returns false if there are none
// or the queue is full.
func (pl *Pipeline) learnFirst(w *workers.Workers, held underlay.HeldFrame, up *datapath.Upcall, t *openflow.Translation) bool {
	if !pl.teaches(t) {
		return false
	}
	miss := *up
	select {
	case pl.lessons <- lesson{t.Learned, w, held, &miss}:
		return true
	default:
		return false
	}
}

// teaches reports whether a frame's learn actions would add new flows. The caller
// holds Pipeline.mu.
func (pl *Pipeline) teaches(t *openflow.Translation) bool {
	for i := range t.Learned {
		if !pl.tables.Learnt(&t.Learned[i]) {
			return true
		}
	}
	return false
}

// learnOn refreshes learned flows at the time usedNS. Missing flows are queued again.
// The caller holds Pipeline.mu for writing.
func (pl *Pipeline) learnOn(learned []openflow.FlowMod, usedNS uint64) {
	missing := false
	for i := range learned {
		missing = !pl.tables.RefreshLearnt(&learned[i], usedNS) || missing
	}
	if !missing {
		return
	}
	select {
	case pl.lessons <- lesson{flows: learned}:
	default: // the queue is full; a later frame tries again
	}
}

// finish applies fin_timeout to flows that saw a FIN or RST. The caller holds
// Pipeline.mu for writing.
func (pl *Pipeline) finish(list []openflow.Finished) {
	for i := range list {
		f := &list[i]
		if f.Rule.Removed || !f.ReduceTimeouts() {
			continue
		}
		pl.rules.writeTimeouts(f.Rule)
	}
}

// learnFlows adds learned flows in batches until ctx ends. It pauses half of the
// time, because each batch revalidates megaflows.
func (pl *Pipeline) learnFlows(ctx context.Context) {
	for {
		var batch []lesson
		select {
		case <-ctx.Done():
			return
		case l := <-pl.lessons:
			batch = append(batch, l)
		}
		for more := true; more && len(batch) < learnBatch; {
			select {
			case l := <-pl.lessons:
				batch = append(batch, l)
			default:
				more = false
			}
		}
		began := time.Now()
		pl.learnBatch(batch)
		for i := range batch {
			if l := &batch[i]; l.workers != nil {
				pl.answer(l.workers, l.held.Worker, []datapath.Upcall{*l.miss}, true)
			}
		}
		if !loop.Sleep(ctx, time.Since(began)) {
			return
		}
	}
}

// learnBatch adds the flows of a batch. After it, no frame uses the old flows.
func (pl *Pipeline) learnBatch(batch []lesson) {
	pl.change.Lock()
	defer pl.change.Unlock()
	var mods []openflow.FlowMod
	for i := range batch {
		mods = append(mods, batch[i].flows...)
	}
	pl.mu.Lock()
	pl.pullAll()
	changes, refused := pl.tables.ApplyLearned(mods, clock.Monotonic())
	pl.unlearnt.Add(uint64(refused)) // the frames of refused flows are forwarded
	removed := pl.rules.enter(&changes)
	pl.mu.Unlock()
	if len(removed) > 0 {
		if err := pl.store.ChangeFlows(nil, removed); err != nil {
			pl.log.Error("cannot remove flows that learnt flows replaced from the state file", "error", err)
		}
	}
	var tables openflow.TableSet
	if changedTables(&changes, &tables); tables != (openflow.TableSet{}) {
		pl.revalidate(func(m *megaflow) bool { return m.tables.Meets(&tables) })
	}
	pl.tell(&changes)
	pl.releaseRows(removed)
}

// changedTables adds the tables of changed rules to set. Megaflows without these
// tables stay valid.
func changedTables(c *openflow.Changes, set *openflow.TableSet) {
	for _, list := range [][]*openflow.Rule{c.Added, c.Modified, c.Removed} {
		for _, r := range list {
			set.Add(r.Table)
		}
	}
}
