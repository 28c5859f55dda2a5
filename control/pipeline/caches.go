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

// setMegaflow fills megaflow m, which has no slot yet, from the translation of key.
func (pl *Pipeline) setMegaflow(m *megaflows.Megaflow, key *flowtable.Key, t *xlate.Translation, nowNS uint64) {
	m.SetActions(t.Actions)
	m.MadeNS, m.UsedNS, m.Owner = nowNS, nowNS, megaflows.OwnerOf(key)
	m.SetUses(t.Addresses)
	pl.setRules(m, t)
}

// setRules makes the frames of megaflow m count for the rules of translation t.
func (pl *Pipeline) setRules(m *megaflows.Megaflow, t *xlate.Translation) {
	m.SetCounted(t, pl.rules.Row)
	m.SetEffects(t)
}

// install queues commands that install the megaflows of the list in every worker, as far as the index
// admits them. It then calls answer, which may be nil and queues further commands. The caller holds
// Pipeline.mu, for reading or writing, from the translations to the end of install. So no change of
// tables comes between a translation and install.
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

// begin gives megaflow m the next generation of its slot. The generation separates the counts of m
// from those of the slot's earlier megaflows.
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

// end counts the last frames of megaflows that no worker has any more, and frees their slots.
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

// pull adds the new counts of megaflow m to the statistics of its rules. The caller
// holds Pipeline.mu for writing.
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

// idleTime returns the time since the last known frame of megaflow m, or since it was made. It
// returns 0 if m has frames that pull has not counted yet. The caller holds Pipeline.mu.
func (pl *Pipeline) idleTime(m *megaflows.Megaflow, now uint64) time.Duration {
	if packets, _, _ := pl.workers.Statistics(m.Slot, m.Generation); packets != pl.counters.Slots[m.Slot].Packets {
		return 0
	}
	return time.Duration(now - min(now, m.UsedNS))
}

// creditCounted adds packets and bytes to the statistics of tables, groups and patch
// ports. rules are the rules that the packets matched.
func (pl *Pipeline) creditCounted(rules []*ofproto.Rule, counted *megaflows.Counted, packets, bytes uint64) {
	if counted == nil {
		pl.creditLookups(rules, nil, packets)
		return
	}
	pl.creditLookups(rules, counted.Missed, packets)
	pl.creditGroups(counted.Groups, packets, bytes)
	pl.creditPatches(counted.Patches, packets, bytes)
}

// pullAll pulls the counts of all megaflows. The caller holds Pipeline.mu for writing.
func (pl *Pipeline) pullAll() {
	for _, m := range pl.megaflows.List() {
		pl.pull(m)
	}
}

// pullInTurns pulls the counts of all megaflows in parts. It releases Pipeline.mu between two parts,
// so that misses are answered meanwhile. Afterwards the statistics have all frames that the workers
// counted before the call, and some later ones. No megaflow is removed meanwhile, because that needs
// a transaction too.
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

// learn stores learned addresses in the address table. A change wakes up maintain. The caller may
// hold any lock except the lock of openflow/fdb.
func (pl *Pipeline) learn(list []fdb.Learn, nowNS uint64) {
	for _, l := range list {
		if pl.macs.Learn(l, nowNS) {
			pl.macsChanged()
		}
	}
}

// macsChanged wakes up the goroutine maintain, which revalidates the megaflows of
// changed addresses.
func (pl *Pipeline) macsChanged() { loop.Notify(pl.macsStale) }
