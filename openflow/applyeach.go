// SPDX-License-Identifier: Apache-2.0

package openflow

// This file applies changes that arrive as OpenFlow messages. Each message is applied
// alone, or many messages as one bundle.

// ApplyEach applies the changes in mods, in order. Each change is applied as a whole or
// refused; errs has the error of each, or nil. In all other respects ApplyEach is like
// Apply.
func (p *Pipeline) ApplyEach(mods []FlowMod, nowNS uint64) (c Changes, errs []error) {
	p.releaseSlots()
	b := bundle{p: p, nowNS: nowNS}
	errs = make([]error, len(mods))
	for i := range mods {
		before := b.mark()
		if errs[i] = b.apply(&mods[i]); errs[i] != nil {
			b.undoSince(before)
		}
	}
	b.mergeChanges()
	return b.changes, errs
}

// BundleItem is one message of a bundle: a change of the flows or of the groups, or a frame.
type BundleItem struct {
	Flow  *FlowMod
	Group *GroupMod
	Frame *PacketOut
	// Execute translates Frame with the tables as the items before have left them. An error
	// refuses the bundle.
	Execute func() error
}

// ApplyBundle applies all changes of a bundle, in order. If it returns an error
// (*ApplyError), no change was made. In all other respects it is like Apply and
// ApplyGroups.
func (p *Pipeline) ApplyBundle(items []BundleItem, nowNS uint64) (Changes, error) {
	p.releaseSlots()
	b := bundle{p: p, nowNS: nowNS}
	start, groups := b.mark(), false
	for i := range items {
		var err error
		switch {
		case items[i].Flow != nil:
			err = b.apply(items[i].Flow)
		case items[i].Group != nil:
			groups = true
			err = b.applyGroups([]GroupMod{*items[i].Group})
		default:
			err = items[i].Execute()
		}
		if err != nil {
			b.undoSince(start)
			return Changes{}, &ApplyError{Index: i, Err: err}
		}
	}
	if groups {
		p.generation++
	}
	b.mergeChanges()
	return b.changes, nil
}

// scanSlots is the number of slots that one call of Scan visits at most.
const scanSlots = 4096

// Scan calls the function visit for the rules that filter selects, starting at slot. It
// returns the slot at which to continue, and false if there are no more rules. One call
// reads at most scanSlots slots and calls visit at most limit times.
func (p *Pipeline) Scan(filter *FlowMod, slot uint32, limit int, visit func(*Rule)) (next uint32, remaining bool) {
	within := filter.Match.Unpack()
	end := min(uint64(len(p.rules)), uint64(slot)+scanSlots)
	for at := uint64(slot); at < end; at++ {
		r := p.rules[at]
		if r == nil || !filter.selects(r) || !r.Match.Within(&within) {
			continue
		}
		visit(r)
		if limit--; limit == 0 {
			return uint32(at + 1), at+1 < uint64(len(p.rules))
		}
	}
	return uint32(end), end < uint64(len(p.rules))
}

// selects reports whether the table, cookie, out_port and out_group of a filter select
// the rule.
func (m *FlowMod) selects(r *Rule) bool {
	return (m.Table == TableAll || m.Table == r.Table) && (r.Cookie^m.Cookie)&m.CookieMask == 0 &&
		(!m.ByOutPort || outputsTo(r.Actions, m.OutPort)) &&
		(!m.ByOutGroup || refersTo(r.Actions, ActGroup, func(id uint32) bool { return id == m.OutGroup }))
}

// Selects reports whether a filter selects the rule.
func (m *FlowMod) Selects(r *Rule) bool {
	within := m.Match.Unpack()
	return m.selects(r) && r.Match.Within(&within)
}
