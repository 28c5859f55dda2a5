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

// Flows that learn actions add. The first frame with a learn action is held until the
// flow that the action adds is in the tables, so that a reply to the frame finds the
// flow. Later frames refresh the learned flow through the statistics of their
// megaflow. Learned flows are not saved.

const (
	// learnQueue is the limit of queued lessons. A lesson is a frame whose learn
	// actions add flows. If the queue is full, the frame is forwarded at once, and
	// its flows are added later, when the statistics of its megaflow are read.
	learnQueue = 1024
	// learnBatch is the limit of lessons, which are frames whose learn actions add
	// flows, in one batch. The megaflows are revalidated once for each batch.
	learnBatch = 256
)

// lesson has the flows that a frame's learn actions add, and the frame itself if a
// worker holds it.
type lesson struct {
	flows   []openflow.FlowMod
	workers *workers.Workers // nil: no frame waits
	held    underlay.HeldFrame
	miss    *datapath.Upcall
}

// learnFirst queues a held frame whose learn actions add new flows. It returns false
// if the frame adds no flow or the queue is full.
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

// teaches reports whether learn actions for the frame would add flows that are not in
// the tables. The caller holds Pipeline.mu.
func (pl *Pipeline) teaches(t *openflow.Translation) bool {
	for i := range t.Learned {
		if !pl.tables.Learnt(&t.Learned[i]) {
			return true
		}
	}
	return false
}

// learnOn updates the ages of the flows in the slice learned, which learn actions
// have added. usedNS is the time of the last frame. Flows that are missing from the
// tables are queued to be added again. The caller holds Pipeline.mu for writing.
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
	default: // The queue is full: a later frame of the megaflow adds the flow again.
	}
}

// finish shortens the timeouts of flows with fin_timeout that saw a FIN or RST. The
// caller holds Pipeline.mu for writing.
func (pl *Pipeline) finish(list []openflow.Finished) {
	for i := range list {
		f := &list[i]
		if f.Rule.Removed || !f.ReduceTimeouts() {
			continue
		}
		pl.rules.writeTimeouts(f.Rule)
	}
}

// learnFlows adds learned flows in batches until ctx ends. After each batch it pauses
// for as long as the batch took, because a batch costs a revalidation of megaflows.
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

// learnBatch adds the flows of a batch of lessons, which are frames with learn
// actions. When it returns, no frame uses the old flows any more.
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
	pl.unlearnt.Add(uint64(refused)) // refused flows are not added, but the frames whose learn actions would add them are forwarded
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

// changedTables inserts the tables of changed rules into set. The translation of a
// megaflow that looked up none of these tables stays valid.
func changedTables(c *openflow.Changes, set *openflow.TableSet) {
	for _, list := range [][]*openflow.Rule{c.Added, c.Modified, c.Removed} {
		for _, r := range list {
			set.Add(r.Table)
		}
	}
}
