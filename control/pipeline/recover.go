// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"iter"
	"slices"

	"weft/control/counters"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow"
)

// recoverMegaflows takes over the workers' caches after a restart of control. It adds
// the counts since the last credit in the counter region to the statistics. Megaflows
// that are still correct stay; the others are removed. It runs at startup, before any
// other goroutine uses the pipeline. The caller holds the lock of changes.
func (pl *Pipeline) recoverMegaflows() {
	used := min(pl.counters.UsedSlots(), uint32(pl.sizes.Megaflows))
	pl.megaflows.reserve(used)
	var stale []uint32
	rules := pl.rules.byRow(pl.tables)
	for slot := range used {
		pl.creditRecovered(slot, rules)
	}
	known := pl.macs.generation()
	for slot := range pl.recoverable(used) {
		if !pl.recoverSlot(slot) {
			stale = append(stale, slot)
		}
	}
	if pl.macs.generation() != known { // an address learned from a later slot can make the megaflow of an earlier slot correct
		stale = slices.DeleteFunc(stale, pl.recoverSlot)
	}
	for _, slot := range stale {
		pl.workers.Broadcast(datapath.AppendCommand(nil, datapath.CmdRemove, slot, nil))
	}
	_ = pl.workers.WaitApplied() // error ignored: the slots of a dead engine are all forgotten
	for _, slot := range slices.Backward(stale) {
		pl.creditRecovered(slot, rules)
		pl.counters.End(slot)
		// If the workers disagree about a slot, because an earlier control process
		// died while it sent commands, the slot is not used again.
		if _, ok := pl.workers.Generation(slot); ok {
			pl.megaflows.release(slot)
		}
	}
}

// recoverable iterates over the slots from 0 to used-1. Slots whose megaflow matches
// a recirc_id come last: they cannot be translated before the megaflow that ends with
// this recirc_id.
func (pl *Pipeline) recoverable(used uint32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		var later []uint32
		for slot := range used {
			key, _, _, installed := pl.workers.Shared()[0].Cache.Read(slot)
			if installed && key.Recirc() != 0 {
				later = append(later, slot)
			} else if !yield(slot) {
				return
			}
		}
		// A megaflow after two or more recirculations can be translated only after
		// the megaflow before it. It may therefore need a later round of this loop.
		for len(later) > 0 {
			before := len(later)
			later = slices.DeleteFunc(later, func(slot uint32) bool {
				key, _, _, _ := pl.workers.Shared()[0].Cache.Read(slot)
				_, known := pl.recircs.Frozen(key.Recirc())
				return known && yield(slot)
			})
			if len(later) == before {
				break
			}
		}
		for _, slot := range later {
			yield(slot)
		}
	}
}

// creditRecovered adds the slot's counts since the last credit to the statistics of
// the rules that the counter region stores for the slot. The keys of rules are rows.
func (pl *Pipeline) creditRecovered(slot uint32, rules map[uint32]*openflow.Rule) {
	s := &pl.counters.Slots[slot]
	if s.RuleCount == 0 || s.RuleCount > counters.SlotRules {
		return
	}
	packets, bytes, usedNS := pl.workers.Statistics(slot, s.Generation)
	packets -= s.Packets
	bytes -= s.Bytes
	if packets == 0 && bytes == 0 {
		return
	}
	rows := slices.DeleteFunc(slices.Clone(s.Rules[:s.RuleCount]), func(row uint32) bool { return row >= counters.MaxRows })
	pl.counters.Credit(slot, rows, packets, bytes, usedNS)
	for _, row := range rows {
		if r := rules[row]; r != nil {
			r.Credit(packets, bytes, usedNS)
		}
	}
}

// recoverSlot translates the key of the megaflow in slot again and learns the address
// that the translation reports. If the translation gives the same actions,
// recoverSlot adopts the megaflow. Otherwise it returns false, and the caller removes
// the megaflow.
func (pl *Pipeline) recoverSlot(slot uint32) bool {
	s := &pl.counters.Slots[slot]
	generation, same := pl.workers.Generation(slot)
	if !same || generation != s.Generation {
		return false
	}
	key, mask, actions, installed := pl.workers.Shared()[0].Cache.Read(slot)
	if !installed {
		return false
	}
	t := pl.tables.Translate(&key, pl.env())
	_, _, usedNS := pl.workers.Statistics(slot, generation)
	if t.Learn.Valid {
		pl.learn(t.Learn, max(usedNS, 1))
	}
	if !slices.Equal(t.Actions, actions) || !within(&t.Mask, &mask) || t.Question.Valid() {
		return false
	}
	m := &megaflow{
		slot: slot, key: key, actions: actions, generation: generation,
		madeNS: clock.Monotonic(), usedNS: usedNS, owner: ownerOf(&key),
	}
	for i := range m.key {
		m.key[i] &= mask[i]
	}
	if s.RuleCount > counters.SlotRules { // The counter region has only some of the megaflow's rules: count for the present rules.
		t := t
		pl.setRules(m, &t)
		pl.pull(m)
	}
	pl.setRules(m, &t)
	m.setUses(t.Addresses)
	pl.counters.Assign(slot, m.ruleRows)
	pl.megaflows.adopt(m, &mask)
	return true
}
