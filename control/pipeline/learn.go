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

// Flows that learn actions add. The first frame waits until the flow that it teaches
// is in the tables, so that an answer to the frame finds the flow. Later frames
// refresh the flow through the megaflow's statistics. Learned flows are not saved.

const (
	// learnQueue bounds the lessons that wait. Beyond it a frame is forwarded at
	// once, and the flow is learned later from its megaflow's statistics.
	learnQueue = 1024
	// learnBatch is the number of lessons for which the megaflows are revalidated
	// once.
	learnBatch = 256
)

// lesson has flows to learn, and the frame that waits for them.
type lesson struct {
	flows   []openflow.FlowMod
	workers *workers.Workers // nil: no frame waits
	held    underlay.HeldFrame
	miss    *datapath.Upcall
}

// learnFirst queues a frame that teaches new flows. It returns false if the frame
// teaches nothing new or the queue is full.
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

// teaches reports whether the frame teaches flows that are not in the tables. The
// caller holds Pipeline.mu.
func (pl *Pipeline) teaches(t *openflow.Translation) bool {
	for i := range t.Learned {
		if !pl.tables.Learnt(&t.Learned[i]) {
			return true
		}
	}
	return false
}

// learnOn refreshes the flows that frames up to usedNS have taught. The caller holds
// Pipeline.mu for writing.
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
	default: // queue full: the megaflow's next frames teach the flow again
	}
}

// finish shortens the timeouts of flows that saw the end of a connection. The caller
// holds Pipeline.mu for writing.
func (pl *Pipeline) finish(list []openflow.Finished) {
	for i := range list {
		f := &list[i]
		if f.Rule.Removed || !f.ReduceTimeouts() {
			continue
		}
		counts := &pl.counters.Rules[pl.places[f.Rule.Slot]]
		counts.IdleTimeout, counts.HardTimeout = f.Rule.IdleTimeout, f.Rule.HardTimeout
	}
}

// learnFlows adds learned flows until ctx ends. It is idle for as long as each batch
// took, because each batch makes it translate megaflows again.
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

// learnBatch adds the flows of a batch. When it returns, no frame uses the old rules
// any more.
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
	pl.unlearnt.Add(uint64(refused)) // the frames of refused flows are forwarded all the same
	removed := pl.enter(&changes)
	pl.mu.Unlock()
	if len(removed) > 0 {
		if err := pl.store.ChangeFlows(nil, removed); err != nil {
			pl.log.Error("flows that learnt ones replaced cannot be removed from the state", "error", err)
		}
	}
	var tables openflow.TableSet
	if changedTables(&changes, &tables); tables != (openflow.TableSet{}) {
		pl.revalidate(func(m *megaflow) bool { return m.tables.Meets(&tables) })
	}
	pl.tell(&changes)
	pl.releasePlaces(removed)
}

// changedTables adds the tables of changed rules to set. Megaflows that looked up no
// other table are translated to the same result as before.
func changedTables(c *openflow.Changes, set *openflow.TableSet) {
	for _, list := range [][]*openflow.Rule{c.Added, c.Modified, c.Removed} {
		for _, r := range list {
			set.Add(r.Table)
		}
	}
}
