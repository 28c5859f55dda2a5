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
func (d *Pipeline) recoverMegaflows() {
	used := min(d.counters.UsedSlots(), uint32(d.sizes.Megaflows))
	d.megaflows.reserve(used)
	var stale []uint32
	for slot := range used {
		d.creditRecovered(slot)
	}
	for slot := range d.recoverable(used) {
		if !d.recoverSlot(slot) {
			stale = append(stale, slot)
		}
	}
	for _, slot := range stale {
		d.workers.Broadcast(datapath.AppendCommand(nil, datapath.CmdRemove, slot, nil))
	}
	_ = d.workers.WaitApplied() // a dead engine's slots are forgotten as a whole
	for _, slot := range slices.Backward(stale) {
		d.creditRecovered(slot)
		d.counters.End(slot)
		// A slot that some workers know another history of, because control died
		// in the middle of telling them, is left unused.
		if _, ok := d.workers.Generation(slot); ok {
			d.megaflows.release(slot)
		}
	}
}

// recoverable are the slots below used, those last whose frames were looked up
// before: what goes on under a recirc_id is known once the translation that ends
// with it has been done again.
func (d *Pipeline) recoverable(used uint32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		var later []uint32
		for slot := range used {
			key, _, _, installed := d.workers.Shared()[0].Cache.Read(slot)
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
				key, _, _, _ := d.workers.Shared()[0].Cache.Read(slot)
				_, known := d.recircs.Frozen(key.Recirc())
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
func (d *Pipeline) creditRecovered(slot uint32) {
	s := &d.counters.Slots[slot]
	if s.RuleCount == 0 || s.RuleCount > counters.SlotRules {
		return
	}
	packets, bytes, usedNS := d.workers.Statistics(slot, s.Generation)
	packets -= s.Packets
	bytes -= s.Bytes
	if packets == 0 && bytes == 0 {
		return
	}
	places := slices.DeleteFunc(slices.Clone(s.Rules[:s.RuleCount]), func(p uint32) bool { return p >= counters.MaxPlaces })
	d.counters.Credit(slot, places, packets, bytes, usedNS)
	for _, p := range places {
		if r := d.ruleAt(p); r != nil {
			r.Credit(packets, bytes, usedNS)
		}
	}
}

// ruleAt is the rule whose place that is.
func (d *Pipeline) ruleAt(place uint32) *openflow.Rule {
	if d.byPlace == nil {
		d.byPlace = map[uint32]*openflow.Rule{}
		for slot, p := range d.places {
			if r := d.tables.Rule(uint32(slot)); r != nil {
				d.byPlace[p] = r
			}
		}
	}
	return d.byPlace[place]
}

// recoverSlot adopts what is installed in slot if it is what translation says
// now; it reports false if it is not to stay.
func (d *Pipeline) recoverSlot(slot uint32) bool {
	s := &d.counters.Slots[slot]
	generation, same := d.workers.Generation(slot)
	if !same || generation != s.Generation {
		return false
	}
	key, mask, actions, installed := d.workers.Shared()[0].Cache.Read(slot)
	if !installed {
		return false
	}
	t := d.tables.Translate(&key, d.env())
	if !slices.Equal(t.Actions, actions) || !within(&t.Mask, &mask) {
		return false
	}
	_, _, usedNS := d.workers.Statistics(slot, generation)
	m := &megaflow{
		slot: slot, key: key, actions: actions, generation: generation,
		madeNS: clock.Monotonic(), usedNS: usedNS, owner: ownerOf(&key),
	}
	for i := range m.key {
		m.key[i] &= mask[i]
	}
	if s.RuleCount > counters.SlotRules { // not all were noted: credit those of now
		t := t
		d.setRules(m, &t)
		d.pull(m)
	}
	d.setRules(m, &t)
	d.counters.Assign(slot, m.places)
	if t.Learn.Valid {
		d.macs.learn(t.Learn, max(usedNS, 1))
	}
	d.megaflows.adopt(m, &mask)
	return true
}
