// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"iter"
	"slices"

	"weft/control/change"
	"weft/control/counters"
	"weft/control/megaflows"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// recovery takes over the megaflows of running workers when a new control process starts. No other
// goroutine uses the pipeline yet.
type recovery struct {
	*Pipeline
	byRow map[uint32]*ofproto.Rule
}

// recoverMegaflows takes over the megaflows of running workers when a new control process starts. It
// keeps the megaflows that are still correct. It adds the frames that the workers have counted since
// the earlier control process read the counts. No other goroutine uses the pipeline yet.
func (pl *Pipeline) recoverMegaflows(*change.Tx) {
	r := recovery{pl, pl.rules.ByRow()}
	used := min(pl.counters.UsedSlots(), uint32(pl.sizes.Megaflows))
	pl.megaflows.Reserve(used)
	var stale []uint32
	for slot := range used {
		r.credit(slot)
	}
	known := pl.macs.Generation()
	for slot := range r.slots(used) {
		if !r.adopt(slot) {
			stale = append(stale, slot)
		}
	}
	// This second check is for a megaflow that depends on a learned address. A megaflow that was
	// checked later may have taught this address.
	if pl.macs.Generation() != known {
		stale = slices.DeleteFunc(stale, r.adopt)
	}
	for _, slot := range stale {
		pl.workers.Broadcast(datapath.AppendCommand(nil, datapath.CmdRemove, slot, nil))
	}
	_ = pl.workers.WaitApplied() // error ignored: all slots of a dead engine are forgotten anyway
	for _, slot := range slices.Backward(stale) {
		r.credit(slot)
		pl.counters.End(slot)
		// If an earlier control process died while it sent the commands, the workers may have
		// different generations of a megaflow. Its index is never used again.
		if _, ok := pl.workers.Generation(slot); ok {
			pl.megaflows.Release(slot)
		}
	}
}

// slots yields the indices of the megaflows in the workers' caches. A megaflow that matches a
// recirc_id comes after the megaflow whose action sets the recirc_id.
func (pl recovery) slots(used uint32) iter.Seq[uint32] {
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
		// A frame may be recirculated several times, so this takes several rounds.
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

// credit adds the workers' counts of a megaflow, since an earlier control process last read them, to
// the statistics of its rules. The shared memory has the indices of these rules.
func (pl recovery) credit(slot uint32) {
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
		if r := pl.byRow[row]; r != nil {
			r.Credit(packets, bytes, usedNS)
		}
	}
}

// adopt looks up a megaflow in the tables again and learns the source address of its frames. The
// megaflow stays if the actions are the same, and if its mask has all bits of the new mask.
// Otherwise adopt returns false.
func (pl recovery) adopt(slot uint32) bool {
	s := &pl.counters.Slots[slot]
	generation, same := pl.workers.Generation(slot)
	if !same || generation != s.Generation {
		return false
	}
	key, mask, actions, installed := pl.workers.Shared()[0].Cache.Read(slot)
	if !installed || key[flowtable.WTunOpts] != 0 { // the OptionTable with these options was the last control process's
		return false
	}
	t := xlate.Translate(pl.tables, &key, pl.env())
	_, _, usedNS := pl.workers.Statistics(slot, generation)
	pl.learn(t.Learns, max(usedNS, 1))
	if !slices.Equal(t.Actions, actions) || !within(&t.Mask, &mask) || t.MustAsk {
		return false
	}
	m := &megaflows.Megaflow{
		Slot: slot, Actions: actions, Generation: generation,
		MadeNS: clock.Monotonic(), UsedNS: usedNS, Owner: megaflows.OwnerOf(&key),
	}
	// The shared memory has too little room for all rules of this megaflow, so the method credit has
	// skipped it. Its counts go to the rules that the new look-up has found.
	if s.RuleCount > counters.SlotRules {
		t := t
		pl.setRules(m, &t)
		pl.pull(m)
	}
	pl.setRules(m, &t)
	m.SetUses(t.Addresses)
	pl.counters.Assign(slot, m.RuleRows)
	pl.megaflows.Adopt(m, &key, &mask)
	pl.offload(m)
	return true
}
