// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/control/megaflows"
	"weft/control/questions"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow"
	"weft/packet"
)

// answer installs megaflows for the misses of one worker, and resumes their frames. If
// there is no room for a megaflow, the worker executes the actions for this frame only.
// learnt means that the flows of learn actions are already in the tables.
func (pl *Pipeline) answer(w *workers.Workers, worker int, misses []datapath.Upcall, learnt bool) {
	if len(misses) == 0 {
		return
	}
	a := answers{d: pl, w: w, worker: worker, learnt: learnt}
	a.answerAll(misses)
}

func (a *answers) answerAll(misses []datapath.Upcall) {
	pl, w, worker := a.d, a.w, a.worker
	pl.mu.RLock()
	if pl.workers != w { // the engine has been replaced meanwhile
		pl.mu.RUnlock()
		return
	}
	a.generation, a.now, a.env = pl.macs.Generation(), clock.Monotonic(), pl.env()
	for i := range misses {
		a.miss(&misses[i])
	}
	w.Publish(worker)
	if a.installed {
		w.PublishAll()
	}
	answered := clock.Monotonic()
	for _, since := range a.since {
		pl.answerTimes.add(answered - min(since, answered))
	}
	pl.mu.RUnlock()
	pl.refusals.Add(uint64(len(a.executed)))
	pl.creditExecuted(a.executed, a.now)
	if len(a.addresses) > 0 && pl.macs.Generation() != a.generation {
		pl.macs.Touch(a.addresses)
		pl.macsChanged() // another miss has learned an address since the translation
	}
}

// answers is the state of one call of the function answer.
type answers struct {
	d          *Pipeline
	w          *workers.Workers
	worker     int
	learnt     bool
	unanswered bool // the frames' questions (for addresses) have found no answer
	generation uint64
	now        uint64
	env        *env
	addresses  []openflow.AddressRef // on which the translations depend
	installed  bool
	spare      *megaflows.Megaflow // for the next translation
	executed   []executedFrame
	since      []uint64 // times at which workers held the answered frames: CLOCK_MONOTONIC in nanoseconds
}

// executedFrame is a frame whose actions were executed once, without a megaflow.
type executedFrame struct {
	rules    []*openflow.Rule
	missed   []openflow.BridgeTable
	groups   []openflow.GroupHit
	patches  []openflow.Crossing
	finished []openflow.Finished
	learned  []openflow.FlowMod
	ruleRows []uint32
	bytes    uint64
}

func (a *answers) miss(up *datapath.Upcall) {
	d, held := a.d, underlay.HeldFrame{Worker: a.worker, Ref: up.Arg}
	bytes := a.w.HeldBytes(held.Worker, held.Ref)
	if a.env.anyCentral {
		d.declared.noteSeen(a.env.View, uint32(up.Key[flowtable.WPort]>>32))
	}
	t := d.tables.Translate(&up.Key, a.env)
	if !a.learnt && d.learner.hold(a.w, held, up, &t) {
		return
	}
	if !a.unanswered && t.Question.Valid() && d.declared.events != nil && a.ask(held, up, &t) {
		return
	}
	if a.spare == nil {
		a.spare = new(megaflows.Megaflow)
	}
	m := a.spare
	d.setMegaflow(m, &up.Key, &t, a.now)
	a.since = append(a.since, a.w.HeldSince(held.Worker, held.Ref))
	var room [workers.CommandRoom]byte
	switch d.install(m, &up.Key, &t.Mask) {
	case megaflows.Refused:
		a.w.Queue(a.worker, datapath.AppendExecute(room[:0], held.Ref, t.Actions))
		a.executed = append(a.executed, executedFrame{m.Rules, m.Missed, m.Groups, t.Patches, t.Finished, t.Learned, m.RuleRows, bytes})
	case megaflows.Admitted:
		a.spare, a.installed = nil, true
		fallthrough
	default:
		a.w.Queue(a.worker, datapath.AppendCommand(room[:0], datapath.CmdRetry, held.Ref, nil))
	}
	d.learn(t.Learns, a.now)
	a.addresses = append(a.addresses, t.Addresses...)
}

// ask makes a frame wait until weft-central has told the address that its translation
// needs, or drops the frame. It returns false if the frame is forwarded without the
// address.
func (a *answers) ask(held underlay.HeldFrame, up *datapath.Upcall, t *openflow.Translation) bool {
	f := questions.Frame{Workers: a.w, Held: held, Miss: *up, Port: megaflows.OwnerOf(&up.Key), Must: t.MustAsk}
	if !a.d.questions.Hold(t.Question, &f) {
		if !t.MustAsk {
			return false
		}
		a.w.Queue(held.Worker, datapath.AppendDropHeld(nil, held.Ref, packet.DropNoAddress))
	}
	return true
}

// questioned is a questions.Answerer.
type questioned struct{ d *Pipeline }

func (q questioned) Knows(question openflow.Question) bool { return q.d.macs.Knows(question) }

func (q questioned) PortName(number uint32) (string, bool) { return q.d.View().PortName(number) }

func (q questioned) Ask(port string, question openflow.Question) bool {
	vni, _ := question.Segment.VNI()
	return q.d.declared.events.Ask(port, vni, question.MAC, question.IP)
}

func (q questioned) Resume(f *questions.Frame, absent bool) {
	a := answers{d: q.d, w: f.Workers, worker: f.Held.Worker, unanswered: absent}
	a.answerAll([]datapath.Upcall{f.Miss})
}

// creditExecuted adds frames that were executed without a megaflow to the counters of
// their rules, and learns addresses from them.
func (pl *Pipeline) creditExecuted(frames []executedFrame, now uint64) {
	if len(frames) == 0 {
		return
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for _, f := range frames {
		pl.counters.Credit(flowtable.NoSlot, f.ruleRows, 1, f.bytes, now)
		for _, r := range f.rules {
			r.Credit(1, f.bytes, now)
		}
		pl.creditLookups(f.rules, f.missed, 1)
		pl.creditGroups(f.groups, 1, f.bytes)
		pl.creditPatches(f.patches, 1, f.bytes)
		pl.learner.refresh(f.learned, now)
		pl.rules.Finish(f.finished)
	}
}
