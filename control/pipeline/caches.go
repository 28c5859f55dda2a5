// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"
	"sync/atomic"
	"time"

	"weft/control/change"
	"weft/control/loop"
	"weft/control/megaflows"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// setMegaflow fills in megaflow m from t, the result of the look-up of a frame with this key in the
// OpenFlow tables. m has no slot in the workers' caches yet.
func (pl *Pipeline) setMegaflow(m *megaflows.Megaflow, key *flowtable.Key, t *xlate.Translation, nowNS uint64) {
	m.SetActions(t.Actions)
	m.MadeNS, m.UsedNS, m.Owner = nowNS, nowNS, megaflows.OwnerOf(key)
	m.SetUses(t.Addresses)
	pl.setRules(m, t)
}

// setRules stores in megaflow m which rules, groups and patch ports its frames count for.
func (pl *Pipeline) setRules(m *megaflows.Megaflow, t *xlate.Translation) {
	m.SetCounted(t, pl.rules.Row)
	m.SetEffects(t)
}

// install sends each megaflow of the list to every worker, unless a limit refuses it. It then calls
// answer, if not nil, which may send more commands in the same batch. The caller holds Pipeline.mu,
// for reading or writing, from the look-up in the tables until install returns. So no change of the
// tables comes in between.
func (pl *Pipeline) install(list []megaflows.Candidate, answer func(b *workers.Batch)) {
	pl.megaflows.Admit(list, func() {
		b := pl.workers.Batch()
		defer b.End()
		// This is a loop of its own, so that the processor loads the cache lines of several slots at
		// once. Workers have written these lines.
		for i := range list {
			if list[i].Verdict == megaflows.Admitted {
				pl.begin(list[i].Megaflow)
			}
		}
		for i := range list {
			c := &list[i]
			if m := c.Megaflow; c.Verdict == megaflows.Admitted {
				var room [workers.CommandRoom]byte
				b.QueueAll(datapath.AppendInstall(room[:0], m.Slot, c.Key, m.Mask(), m.Actions))
			}
		}
		if answer != nil {
			answer(b)
		}
		for i := range list {
			if list[i].Verdict == megaflows.Admitted {
				pl.offload(list[i].Megaflow)
			}
		}
	})
}

// begin gives megaflow m a new generation number in its slot of the workers' caches. Counts with
// another number belong to an earlier megaflow in the same slot.
func (pl *Pipeline) begin(m *megaflows.Megaflow) {
	m.Generation = atomic.LoadUint32(&pl.workers.Shared()[0].Cache.Flows[m.Slot].Generation) + 1
	pl.counters.Begin(m.Slot, m.Generation, m.RuleRows)
}

// evict removes megaflows from all workers. When evict returns, no frame uses them and
// all their frames are counted. It takes Pipeline.mu.
func (pl *Pipeline) evict(_ *change.Tx, list []*megaflows.Megaflow) {
	if len(list) == 0 {
		return
	}
	gone := list[:0]
	for part := range slices.Chunk(list, megaflows.PartSlots) { // misses are answered in between
		gone = append(gone, pl.megaflows.Forget(part, func(m *megaflows.Megaflow) {
			pl.reclaim(m) // comes first, so that the worker takes the kernel's last counts when it removes the megaflow
			pl.workers.Broadcast(datapath.AppendCommand(nil, datapath.CmdRemove, m.Slot, nil))
		})...)
	}
	_ = pl.workers.WaitApplied() // error ignored: the counts of a dead engine can still be read
	for part := range slices.Chunk(gone, megaflows.PartSlots) {
		pl.end(part)
	}
}

// end adds the last counts of megaflows that no worker has any more to the statistics, and frees
// their slots.
func (pl *Pipeline) end(list []*megaflows.Megaflow) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for _, m := range list {
		pl.discard(m)
		pl.pull(m)
		pl.counters.End(m.Slot)
		pl.megaflows.Release(m.Slot)
	}
}

// pull reads the workers' counts of megaflow m and adds the increase to the statistics of its rules.
// The caller holds Pipeline.mu for writing.
func (pl *Pipeline) pull(m *megaflows.Megaflow) {
	packets, bytes, usedNS := pl.workers.Statistics(m.Slot, m.Generation)
	credited := &pl.counters.Slots[m.Slot]
	if packets == credited.Packets && bytes == credited.Bytes {
		return
	}
	packets -= credited.Packets
	bytes -= credited.Bytes
	pl.counters.Credit(m.Slot, m.RuleRows, packets, bytes, usedNS)
	for _, r := range m.Rules {
		r.Credit(packets, bytes, usedNS)
	}
	pl.creditCounted(m.Rules, m.Counted, packets, bytes)
	m.UsedNS = max(m.UsedNS, usedNS)
	if m.Teaches == nil {
		return
	}
	pl.learner.refresh(m.Teaches.Learned, usedNS)
	pl.rules.Finish(m.Teaches.Finished)
	for _, l := range m.Teaches.Learns {
		if _, exists := pl.view.byDatapath[l.Port]; exists {
			pl.learn([]fdb.Learn{l}, usedNS)
		}
	}
}

// idleTime returns the time since the last frame of megaflow m, or since its creation. It returns 0
// if the workers have counted frames that pull has not read yet. The caller holds Pipeline.mu.
func (pl *Pipeline) idleTime(m *megaflows.Megaflow, now uint64) time.Duration {
	if packets, _, _ := pl.workers.Statistics(m.Slot, m.Generation); packets != pl.counters.Slots[m.Slot].Packets {
		return 0
	}
	return time.Duration(now - min(now, m.UsedNS))
}

// creditCounted adds packets and bytes to the statistics of tables, groups and patch ports. "rules"
// has the rules that the packets matched.
func (pl *Pipeline) creditCounted(rules []*ofproto.Rule, counted *megaflows.Counted, packets, bytes uint64) {
	if counted == nil {
		pl.creditLookups(rules, nil, packets)
		return
	}
	pl.creditLookups(rules, counted.Missed, packets)
	pl.creditGroups(counted.Groups, packets, bytes)
	pl.creditPatches(counted.Patches, packets, bytes)
}

// pullAll reads the workers' counts of all megaflows. The caller holds Pipeline.mu for writing.
func (pl *Pipeline) pullAll() {
	for _, m := range pl.megaflows.List() {
		pl.pull(m)
	}
}

// pullInTurns reads the workers' counts of all megaflows. It releases Pipeline.mu between two parts
// of them, so that misses are answered meanwhile. Afterwards the statistics include all frames that
// the workers counted before the call. No megaflow is removed meanwhile, because only a transaction
// may do this.
func (pl *Pipeline) pullInTurns(*change.Tx) {
	var part []*megaflows.Megaflow
	for next := uint32(0); ; {
		part, next = pl.megaflows.Part(part, next)
		pl.mu.Lock()
		for _, m := range part {
			pl.pull(m)
		}
		pl.mu.Unlock()
		if next == 0 {
			return
		}
	}
}

// learn stores the source addresses of frames in the table of MAC addresses. If the table changes,
// learn wakes up the goroutine of maintain. The caller may hold any lock except the one of the
// table.
func (pl *Pipeline) learn(list []fdb.Learn, nowNS uint64) {
	for _, l := range list {
		if pl.macs.Learn(l, nowNS) {
			pl.macsChanged()
		}
	}
}

// macsChanged wakes up the goroutine of maintain, which checks the megaflows whose MAC addresses are
// on another port now.
func (pl *Pipeline) macsChanged() { loop.Notify(pl.macsStale) }
