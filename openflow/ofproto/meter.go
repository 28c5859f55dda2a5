// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"maps"
	"slices"

	"weft/openflow"
)

// meterTable has the meters of a bridge. It assigns each band a slot, which is the index of the band's token
// bucket in the data path.
type meterTable struct {
	meters map[uint32]*openflow.Meter
	free   []uint32
	next   uint32
}

// ApplyMeters applies all changes of meters in mods, in order. If one fails, it makes no change and returns
// an *ApplyError. If a change deletes a meter, the flows with an action for this meter are deleted, too.
// changedMeters has the added and modified meters. nowNS is CLOCK_MONOTONIC.
func (p *Tables) ApplyMeters(mods []openflow.MeterMod, nowNS uint64) (c Changes, changedMeters []*openflow.Meter, err error) {
	p.releaseSlots()
	t := meterTable{maps.Clone(p.meters), slices.Clone(p.common.meterSlots.free), p.common.meterSlots.next}
	if t.meters == nil {
		t.meters = make(map[uint32]*openflow.Meter)
	}
	gone := make(map[uint32]bool)
	for i := range mods {
		m, err := t.apply(&mods[i], gone)
		if err != nil {
			return Changes{}, nil, &ApplyError{Index: i, Line: mods[i].Line, Err: err}
		}
		if m != nil {
			m.CreatedNS = nowNS
			if old := p.meters[m.ID]; old != nil && !gone[m.ID] {
				m.CreatedNS = old.CreatedNS
			}
			changedMeters = append(changedMeters, m)
		}
	}
	changedMeters = slices.DeleteFunc(changedMeters, func(m *openflow.Meter) bool { return t.meters[m.ID] != m })
	p.meters, p.common.meterSlots.free, p.common.meterSlots.next = t.meters, t.free, t.next
	p.generation++
	b := bundle{p: p, nowNS: nowNS}
	if len(gone) > 0 {
		for _, r := range p.rules {
			if r != nil && refersTo(r.Actions, openflow.ActMeter, func(id uint32) bool { return gone[id] && t.meters[id] == nil }) {
				b.remove(r, WhyMeter)
			}
		}
		p.takeOrphans(func(r *Rule) { b.remove(r, WhyDeleted) })
		b.mergeChanges()
	}
	return b.changes, changedMeters, nil
}

func (t *meterTable) apply(m *openflow.MeterMod, removed map[uint32]bool) (*openflow.Meter, error) {
	id := m.Meter.ID
	old := t.meters[id]
	switch {
	case m.Command == openflow.MeterDelete && id == openflow.MeterAll:
		for id, old := range t.meters {
			removed[id] = true
			t.release(old)
		}
		clear(t.meters)
		return nil, nil
	case m.Command == openflow.MeterDelete:
		removed[id] = true
		if old != nil {
			t.release(old)
			delete(t.meters, id)
		}
		return nil, nil
	case m.Command == openflow.MeterAdd && old != nil:
		return nil, openflow.Errorf(openflow.ErrMeterExists, "meter %d: expected a number that no meter has", id)
	case m.Command == openflow.MeterModify && old == nil:
		return nil, openflow.Errorf(openflow.ErrMeterUnknown, "meter %d: there is no such meter; expected the number of one", id)
	}
	if old != nil {
		t.release(old)
	}
	fresh := m.Meter
	fresh.Bands = slices.Clone(m.Meter.Bands)
	for i := range fresh.Bands {
		slot, ok := t.allocSlot()
		if !ok {
			return nil, openflow.Errorf(openflow.ErrMeterOutOfMeters, "meter %d: expected at most %d bands in all meters", id, openflow.MaxBands)
		}
		fresh.Bands[i].Slot = slot
	}
	t.meters[id] = &fresh
	return &fresh, nil
}

func (t *meterTable) allocSlot() (uint32, bool) {
	if n := len(t.free); n > 0 {
		slot := t.free[n-1]
		t.free = t.free[:n-1]
		return slot, true
	}
	t.next++
	return t.next - 1, t.next <= openflow.MaxBands
}

func (t *meterTable) release(m *openflow.Meter) {
	for i := range m.Bands {
		t.free = append(t.free, m.Bands[i].Slot)
	}
}

// Meter returns the meter with this number, or nil.
func (p *Tables) Meter(id uint32) *openflow.Meter { return p.meters[id] }

// Meters returns a list with the meter of this number. For MeterAll, it returns all meters, in the order of
// their numbers.
func (p *Tables) Meters(id uint32) []*openflow.Meter {
	var list []*openflow.Meter
	for _, m := range p.meters {
		if id == openflow.MeterAll || m.ID == id {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b *openflow.Meter) int { return int(int64(a.ID) - int64(b.ID)) })
	return list
}
