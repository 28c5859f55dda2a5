// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"sync"
	"time"

	"weft/control/megaflows"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
	"weft/packet"
)

// answer looks up the misses of one worker in the tables, installs megaflows, and lets the worker
// forward the frames. If a limit refuses a megaflow, the worker executes the actions for this frame
// only. learned is true if the tables already have the flows of the frames' learn actions.
func (pl *Pipeline) answer(w *workers.Workers, worker int, misses []datapath.Upcall, learned bool) {
	if len(misses) == 0 {
		return
	}
	a := answersPool.Get().(*answers)
	a.d, a.w, a.worker, a.learned, a.unanswered = pl, w, worker, learned, false
	a.answerAll(misses)
	a.end()
}

// answerTime limits the time for one batch of misses. Pipeline.mu is held for this time, and a
// change of the configuration waits for it.
const answerTime = time.Millisecond

// answerFirst is like answer, but begins no further look-up after the time "within" has passed. It
// answers the misses in order, and at least one. For each answered miss it appends the time of its
// look-up in nanoseconds to costs, and returns costs.
func (pl *Pipeline) answerFirst(w *workers.Workers, worker int, misses []datapath.Upcall, costs []uint64, within time.Duration) []uint64 {
	if len(misses) == 0 {
		return costs
	}
	a := answersPool.Get().(*answers)
	a.d, a.w, a.worker, a.learned, a.unanswered = pl, w, worker, false, false
	a.limit, a.costs = within, costs
	a.answerAll(misses)
	costs = a.costs
	a.end()
	return costs
}

// answerAll looks up all misses, or as many as the time limit allows. Only then it installs the
// megaflows. So it takes the locks once for all, and the worker looks up all waiting frames in one
// batch.
func (a *answers) answerAll(misses []datapath.Upcall) {
	pl := a.d
	pl.mu.RLock()
	if pl.workers != a.w { // the engine has been replaced meanwhile
		pl.mu.RUnlock()
		a.costs = append(a.costs, make([]uint64, len(misses))...)
		return
	}
	a.generation, a.now, a.env = pl.macs.Generation(), clock.Monotonic(), pl.env()
	began := a.now
	for i := range misses {
		a.translate(&misses[i])
		if a.limit != 0 {
			now := clock.Monotonic()
			a.costs = append(a.costs, now-began)
			if began = now; time.Duration(now-a.now) > a.limit {
				break
			}
		}
	}
	for i := range a.candidates {
		a.candidates[i].Mask = &a.translations[i].Mask // translations does not grow any more, so its elements stay in place
		a.since = append(a.since, a.w.HeldSince(a.worker, a.refs[i]))
	}
	installed := false
	pl.install(a.candidates, func(b *workers.Batch) { installed = a.resume(b) })
	a.w.Publish(a.worker)
	if installed {
		a.w.PublishAll()
	}
	pl.answerTimes.add(clock.Monotonic(), a.since)
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
	learned    bool
	unanswered bool          // nobody has the addresses that the frames need, or no answer came
	limit      time.Duration // of the translations; 0: none
	costs      []uint64      // nanoseconds that each translated miss took, if there is a limit
	generation uint64
	now        uint64
	env        *env
	addresses  []fdb.Ref // addresses on which the translations depend
	executed   []executedFrame
	since      []uint64 // times at which the worker held the answered frames: CLOCK_MONOTONIC in nanoseconds

	// The following slices have one element for each miss that was looked up. The arrays in
	// translations are reused.
	translations []xlate.Translation
	candidates   []megaflows.Candidate
	refs         []uint32              // references of the held frames
	spares       []*megaflows.Megaflow // not added to the index; the next translations reuse them
}

var answersPool = sync.Pool{New: func() any { return new(answers) }}

// end clears the state and returns it to answersPool for another call.
func (a *answers) end() {
	for i, c := range a.candidates {
		clear(a.translations[i].Rules) // do not keep removed rules alive
		if c.Verdict != megaflows.Admitted {
			a.spares = append(a.spares, c.Megaflow)
		}
	}
	clear(a.candidates)
	clear(a.executed)
	a.candidates, a.refs, a.since, a.executed, a.addresses = a.candidates[:0], a.refs[:0], a.since[:0], a.executed[:0], a.addresses[:0]
	a.d, a.w, a.env, a.limit, a.costs = nil, nil, nil, 0, nil
	answersPool.Put(a)
}

// executedFrame is a frame whose actions were executed once, without a megaflow.
type executedFrame struct {
	rules    []*ofproto.Rule
	missed   []ofproto.BridgeTable
	groups   []ofproto.GroupHit
	patches  []xlate.Crossing
	finished []ofproto.Finished
	learned  []openflow.FlowMod
	ruleRows []uint32
	bytes    uint64
}

func executedOf(m *megaflows.Megaflow, bytes uint64) executedFrame {
	f := executedFrame{rules: m.Rules, ruleRows: m.RuleRows, bytes: bytes}
	if c := m.Counted; c != nil {
		f.missed, f.groups, f.patches = c.Missed, c.Groups, c.Patches
	}
	if m.Teaches != nil {
		f.finished, f.learned = m.Teaches.Finished, m.Teaches.Learned
	}
	return f
}

// translate looks up a missed frame in the OpenFlow tables, and adds the result to the candidates
// for megaflows. There are three frames for which it adds none: one that waits for the location of
// an address, one that waits for the flows of its learn actions, and a request that this host
// answers itself.
func (a *answers) translate(up *datapath.Upcall) {
	d, held, n := a.d, underlay.HeldFrame{Worker: a.worker, Ref: up.Arg}, len(a.candidates)
	if a.env.anyCentral {
		d.declared.noteSeen(a.env.View, up.Key.InPort())
	}
	if n == len(a.translations) {
		a.translations = append(a.translations, xlate.Translation{})
	}
	t := &a.translations[n]
	hash := up.Key[flowtable.WTunOpts]
	added := hash != 0 && d.options.Put(megaflows.OwnerOf(&up.Key), hash, up.Options)
	xlate.TranslateTo(d.tables, t, &up.Key, a.env)
	if added && t.Mask[flowtable.WTunOpts] == 0 {
		d.options.Forget(hash)
	}
	if !a.learned && d.learner.hold(a.w, held, up, t) {
		return
	}
	if t.Request {
		a.serve(held, up)
		return
	}
	if !a.unanswered && t.Question.Valid() && d.declared.events != nil && a.ask(held, up, t) {
		return
	}
	m := a.megaflow()
	d.setMegaflow(m, &up.Key, t, a.now)
	a.candidates = append(a.candidates, megaflows.Candidate{Megaflow: m, Key: &up.Key})
	a.refs = append(a.refs, up.Arg)
	d.learn(t.Learns, a.now)
	a.addresses = append(a.addresses, t.Addresses...)
}

// megaflow returns a Megaflow for setMegaflow to fill in. It reuses one that an earlier call of
// answer did not install (see the field spares), or allocates a new one.
func (a *answers) megaflow() *megaflows.Megaflow {
	if n := len(a.spares); n > 0 {
		m := a.spares[n-1]
		a.spares = a.spares[:n-1]
		return m
	}
	return new(megaflows.Megaflow)
}

// resume sends the commands that make the worker look up or forward the waiting frames, in the order
// of their misses. It reports whether a megaflow was installed.
func (a *answers) resume(b *workers.Batch) (installed bool) {
	var room [workers.CommandRoom]byte
	for i := range a.candidates {
		c, ref := &a.candidates[i], a.refs[i]
		if c.Verdict != megaflows.Refused {
			installed = installed || c.Verdict == megaflows.Admitted
			b.Queue(a.worker, datapath.AppendCommand(room[:0], datapath.CmdRetry, ref, nil))
			continue
		}
		a.executed = append(a.executed, executedOf(c.Megaflow, a.w.HeldBytes(a.worker, ref)))
		b.Queue(a.worker, datapath.AppendExecute(room[:0], ref, c.Megaflow.Actions))
	}
	return installed
}

// ask makes a frame wait until weft-central, the service that configures the networks of many hosts,
// has told where an address is. If too many frames of the port wait already, ask drops the frame. It
// returns false if the frame may be forwarded without the address.
func (a *answers) ask(held underlay.HeldFrame, up *datapath.Upcall, t *xlate.Translation) bool {
	f := questionFrame{Workers: a.w, Held: held, Miss: *up, Port: megaflows.OwnerOf(&up.Key), Must: t.MustAsk}
	if !a.d.questions.Hold(t.Question, &f) {
		if !t.MustAsk {
			return false
		}
		a.w.Queue(held.Worker, datapath.AppendDropHeld(nil, held.Ref, packet.DropNoAddress))
	}
	return true
}

// questioned is the Pipeline as an answerer.
type questioned struct{ d *Pipeline }

func (q questioned) Knows(question fdb.Question) bool { return q.d.macs.Knows(question) }

func (q questioned) PortName(number uint32) (string, bool) { return q.d.View().PortName(number) }

func (q questioned) Ask(port string, question fdb.Question) bool {
	vni, _ := question.Segment.VNI()
	return q.d.declared.events.Ask(port, vni, question.MAC, question.IP)
}

func (q questioned) Resume(f *questionFrame, absent bool) {
	a := answersPool.Get().(*answers)
	a.d, a.w, a.worker, a.learned, a.unanswered = q.d, f.Workers, f.Held.Worker, false, absent
	a.answerAll([]datapath.Upcall{f.Miss})
	a.end()
}

// creditExecuted adds frames that were forwarded without a megaflow to the counters of their rules,
// groups and patch ports. It restarts the timeouts of the flows that they learn, and applies
// fin_timeout.
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
