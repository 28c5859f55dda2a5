package pipeline

import (
	"iter"
	"slices"

	"weft/control/counters"
	"weft/datapath"
	"weft/internal/clock"
	"weft/openflow"
)

// recoverMegaflows takes up the workers' caches after control was away: what
// they counted is credited, exactly where the counter region says how far that
// had got; megaflows that still hold go on; the others are removed. Nothing
// else runs yet. Caller holds change.
func (pl *Pipeline) recoverMegaflows() {
	used := min(pl.counters.UsedSlots(), uint32(pl.sizes.Megaflows))
	pl.megaflows.reserve(used)
	var stale []uint32
	for slot := range used {
		pl.creditRecovered(slot)
	}
	for slot := range pl.recoverable(used) {
		if !pl.recoverSlot(slot) {
			stale = append(stale, slot)
		}
	}
	for _, slot := range stale {
		pl.workers.Broadcast(datapath.AppendCommand(nil, datapath.CmdRemove, slot, nil))
	}
	_ = pl.workers.WaitApplied() // a dead engine's slots are forgotten as a whole
	for _, slot := range slices.Backward(stale) {
		pl.creditRecovered(slot)
		pl.counters.End(slot)
		// A slot that some workers know another history of, because control died
		// in the middle of telling them, is left unused.
		if _, ok := pl.workers.Generation(slot); ok {
			pl.megaflows.release(slot)
		}
	}
}

// recoverable are the slots below used, those last whose frames were looked up
// before: what goes on under a recirc_id is known once the translation that ends
// with it has been done again.
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
		// A look-up behind a look-up behind a look-up may be known only in the next
		// round.
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

// creditRecovered credits the rules noted with slot with what it counted since
// control last did.
func (pl *Pipeline) creditRecovered(slot uint32) {
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
	places := slices.DeleteFunc(slices.Clone(s.Rules[:s.RuleCount]), func(p uint32) bool { return p >= counters.MaxPlaces })
	pl.counters.Credit(slot, places, packets, bytes, usedNS)
	for _, p := range places {
		if r := pl.ruleAt(p); r != nil {
			r.Credit(packets, bytes, usedNS)
		}
	}
}

// ruleAt is the rule whose place that is.
func (pl *Pipeline) ruleAt(place uint32) *openflow.Rule {
	if pl.byPlace == nil {
		pl.byPlace = map[uint32]*openflow.Rule{}
		for slot, p := range pl.places {
			if r := pl.tables.Rule(uint32(slot)); r != nil {
				pl.byPlace[p] = r
			}
		}
	}
	return pl.byPlace[place]
}

// recoverSlot adopts what is installed in slot if it is what translation says
// now; it reports false if it is not to stay.
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
	if !slices.Equal(t.Actions, actions) || !within(&t.Mask, &mask) {
		return false
	}
	_, _, usedNS := pl.workers.Statistics(slot, generation)
	m := &megaflow{
		slot: slot, key: key, actions: actions, generation: generation,
		madeNS: clock.Monotonic(), usedNS: usedNS, owner: ownerOf(&key),
	}
	for i := range m.key {
		m.key[i] &= mask[i]
	}
	if s.RuleCount > counters.SlotRules { // not all were noted: credit those of now
		t := t
		pl.setRules(m, &t)
		pl.pull(m)
	}
	pl.setRules(m, &t)
	pl.counters.Assign(slot, m.places)
	if t.Learn.Valid {
		pl.macs.learn(t.Learn, max(usedNS, 1))
	}
	pl.megaflows.adopt(m, &mask)
	return true
}
