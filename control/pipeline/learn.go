// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"sync/atomic"
	"time"

	"weft/control/change"
	"weft/control/loop"
	"weft/control/megaflows"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// This file adds the flows of learn actions. The worker stores the first frame with a learn action
// until the new flow is in the tables, so that a reply finds the flow. Later frames restart the
// flow's timeouts through their counts. Learned flows are not saved.

const (
	// learnQueue limits the frames and flows in the queue. If the queue is full, a frame is forwarded
	// at once, and the next sweep of statistics adds its flows.
	learnQueue = 1024
	// learnBatch limits the frames and flows of one batch. Each batch causes one update of the
	// megaflows.
	learnBatch = 256
)

// learner adds the flows of learn actions. The goroutine of run takes them from the queue.
// Bridge.Send adds the flows of packet-outs without the queue.
type learner struct {
	d       *Pipeline
	lessons chan lesson
	refused atomic.Uint64 // number of learned flows that the tables refused, for example at a limit
}

func newLearner(pl *Pipeline) *learner {
	return &learner{d: pl, lessons: make(chan lesson, learnQueue)}
}

// lesson is one item of the queue. It is a frame that waits in a worker until its learn actions have
// added flows. If the frame was already forwarded, the lesson has only the flows.
type lesson struct {
	flows   []openflow.FlowMod // if workers is nil
	workers *workers.Workers   // nil: no frame waits
	held    underlay.HeldFrame
	miss    *datapath.Upcall
}

// hold puts a frame, which the worker stores, into the queue if its learn actions add flows. It
// returns false if they add no flow, or if the queue is full.
func (l *learner) hold(w *workers.Workers, held underlay.HeldFrame, up *datapath.Upcall, t *xlate.Translation) bool {
	if !l.teaches(t) {
		return false
	}
	miss := *up
	select {
	case l.lessons <- lesson{workers: w, held: held, miss: &miss}:
		return true
	default:
		return false
	}
}

// teaches reports whether the learn actions in t would add flows that the tables lack. The caller
// holds Pipeline.mu.
func (l *learner) teaches(t *xlate.Translation) bool {
	for i := range t.Learned {
		if tables := l.d.tablesOf(t.Learned[i].Bridge); tables != nil && !tables.Learned(&t.Learned[i]) {
			return true
		}
	}
	return false
}

// refresh restarts the timeouts of learned flows. Their last frame arrived at usedNS. Flows that are
// no longer in the tables go into the queue. The caller holds Pipeline.mu for writing.
func (l *learner) refresh(learned []openflow.FlowMod, usedNS uint64) {
	missing := false
	for i := range learned {
		if tables := l.d.tablesOf(learned[i].Bridge); tables != nil {
			missing = !tables.RefreshLearned(&learned[i], usedNS) || missing
		}
	}
	if !missing {
		return
	}
	select {
	case l.lessons <- lesson{flows: learned}:
	default: // the queue is full; a later sweep tries again
	}
}

// run adds learned flows in batches until ctx ends. After each batch it pauses for as long as the
// batch took, because each batch also updates the megaflows.
func (l *learner) run(ctx context.Context) {
	for {
		var batch []lesson
		select {
		case <-ctx.Done():
			return
		case one := <-l.lessons:
			batch = append(batch, one)
		}
		for more := true; more && len(batch) < learnBatch; {
			select {
			case one := <-l.lessons:
				batch = append(batch, one)
			default:
				more = false
			}
		}
		began := time.Now()
		l.batch(batch)
		if !loop.Sleep(ctx, time.Since(began)) {
			return
		}
	}
}

// batch adds the flows of the items from the queue, and forwards the frames that waited for them.
func (l *learner) batch(lessons []lesson) {
	var again []lesson
	err := l.d.configuration.Update(func(tx *change.Tx) error { again = l.teach(tx, lessons); return nil })
	if err != nil {
		l.d.log.Error("cannot remove flows that learned flows replaced from the state file", "error", err)
	}
	for i := range again {
		a := &again[i]
		l.d.answer(a.workers, a.held.Worker, []datapath.Upcall{*a.miss}, true)
	}
}

// taughtFrame is a stored frame whose learn actions have added flows, with the result of its
// look-up.
type taughtFrame struct {
	lesson *lesson
	xlate.Translation
	executed executedFrame
}

// teach adds the flows of a batch in order. As in Open vSwitch, a frame is forwarded by the rules
// that it matched before it added flows, and counts for these rules. The commit forwards the frames,
// after it has updated the megaflows. The result "repeats" has the frames for which it does not do
// this, and which the caller looks up again. An earlier item of the batch has added their flows
// already, or they need the location of an address.
func (l *learner) teach(tx *change.Tx, batch []lesson) (repeats []lesson) {
	pl := l.d
	var frames []taughtFrame
	var changes []ofproto.Changes
	var removed []uint32
	pl.pullInTurns(tx)
	pl.mu.Lock()
	now, env := clock.Monotonic(), pl.env()
	for i := range batch {
		one := &batch[i]
		flows := one.flows
		if one.workers != nil {
			t := xlate.Translate(pl.tables, &one.miss.Key, env)
			flows = t.Learned
			if l.teaches(&t) && !t.Question.Valid() {
				frames = append(frames, taughtFrame{one, t, executedFrame{rules: t.Rules, missed: t.Missed, groups: t.Groups, patches: t.Patches, finished: t.Finished,
					learned: t.Learned, ruleRows: pl.rules.Rows(t.Rules)}})
			} else {
				repeats = append(repeats, *one)
			}
		}
		c, refused := pl.applyLearned(flows, now)
		l.refused.Add(uint64(refused)) // the frames of refused flows are forwarded
		removed = append(removed, pl.rules.Enter(&c)...)
		changes = append(changes, c)
	}
	pl.mu.Unlock()
	if len(removed) > 0 {
		tx.Lasts()
		pl.rules.SaveFlows(tx, &ofproto.Changes{}, removed)
	}
	if len(frames) > 0 {
		tx.At(change.Tell, &frames[0], func() error { l.forward(tx, frames, now); return nil })
	}
	for i := range changes {
		pl.entered(tx, &changes[i], nil)
	}
	pl.entered(tx, &ofproto.Changes{}, removed)
	return repeats
}

// forward makes the workers execute the actions of stored frames, unless the engine has been
// replaced. It installs megaflows for later frames. Ports and tunnels are the same as at the
// look-up, because both happen in one transaction.
func (l *learner) forward(_ *change.Tx, frames []taughtFrame, now uint64) {
	if len(frames) == 0 {
		return
	}
	pl := l.d
	executed := make([]executedFrame, 0, len(frames))
	pl.mu.RLock()
	env := pl.env()
	for i := range frames {
		f := &frames[i]
		w, held, key := f.lesson.workers, f.lesson.held, &f.lesson.miss.Key
		if w != pl.workers {
			continue
		}
		// If the result depends on addresses, the answer to another miss may be changing them now. The
		// next frame then installs the megaflow.
		if t := xlate.Translate(pl.tables, key, env); len(t.Addresses) == 0 && !t.Question.Valid() {
			m := new(megaflows.Megaflow)
			pl.setMegaflow(m, key, &t, now)
			pl.install([]megaflows.Candidate{{Megaflow: m, Key: key, Mask: &t.Mask}}, nil)
		}
		f.executed.bytes = w.HeldBytes(held.Worker, held.Ref)
		executed = append(executed, f.executed)
		var room [workers.CommandRoom]byte
		w.Queue(held.Worker, datapath.AppendExecute(room[:0], held.Ref, f.Actions))
		pl.learn(f.Learns, now)
	}
	pl.workers.PublishAll()
	pl.mu.RUnlock()
	pl.creditExecuted(executed, now)
}
