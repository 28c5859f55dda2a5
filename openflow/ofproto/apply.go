// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"fmt"
	"slices"

	"weft/openflow"
)

// ApplyError says which change made a call of Apply fail, and why.
type ApplyError struct {
	Index int // index of the failed change in the caller's slice
	Line  int // line number, see FlowMod.Line
	Err   error
}

func (e *ApplyError) Error() string {
	if e.Line != 0 {
		return fmt.Sprintf("line %d: %v", e.Line, e.Err)
	}
	return e.Err.Error()
}

func (e *ApplyError) Unwrap() error { return e.Err }

// bundle is the state of a call of Apply: the changes so far, and for each change a function that undoes it.
// The changes succeed together or not at all.
type bundle struct {
	p       *Tables
	nowNS   uint64
	central bool // weft-central makes the changes, so they may concern CentralTable
	changes Changes
	undo    []func()
	victims map[uint8][]*Rule // candidates for eviction, by table
}

// Apply applies all changes in mods, in order. If a change fails, Apply makes no change and returns an
// *ApplyError. nowNS is CLOCK_MONOTONIC. The tables keep the slices Actions of mods; the caller must not
// modify them any more. Apply refuses changes of CentralTable, the table of weft-central's flows.
func (p *Tables) Apply(mods []openflow.FlowMod, nowNS uint64) (Changes, error) {
	return p.applyAll(bundle{p: p, nowNS: nowNS}, mods)
}

func (p *Tables) applyAll(b bundle, mods []openflow.FlowMod) (Changes, error) {
	p.releaseSlots()
	start := b.mark()
	for i := range mods {
		if err := b.apply(&mods[i]); err != nil {
			b.undoSince(start)
			return Changes{}, &ApplyError{Index: i, Line: mods[i].Line, Err: err}
		}
	}
	b.mergeChanges()
	return b.changes, nil
}

// bundleMark is a point in time of a bundle, to which undoSince can return. It has the lengths that the
// lists of the bundle had at that time.
type bundleMark struct{ undo, leaving, added, modified, removed int }

func (b *bundle) mark() bundleMark {
	c := &b.changes
	return bundleMark{len(b.undo), len(b.p.leaving), len(c.Added), len(c.Modified), len(c.Removed)}
}

// undoSince undoes the changes that were made after the point m, the newest first.
func (b *bundle) undoSince(m bundleMark) {
	for _, undo := range slices.Backward(b.undo[m.undo:]) {
		undo()
	}
	c := &b.changes
	b.undo, c.Added, c.Modified, c.Removed = b.undo[:m.undo], c.Added[:m.added], c.Modified[:m.modified], c.Removed[:m.removed]
	// The undone changes may have evicted rules, so the lists of candidates for eviction are no longer
	// complete.
	b.p.leaving, b.p.orphans, b.victims = b.p.leaving[:m.leaving], nil, nil
}

// releaseSlots frees the slots of the rules that the previous call of Apply removed. A slot is not free
// before, because an undo may put the rule back into it.
func (p *Tables) releaseSlots() {
	p.free = append(p.free, p.leaving...)
	p.leaving = p.leaving[:0]
}

// mergeChanges removes intermediate states from the lists of changes. A rule that a call of Apply has
// changed several times is then in one list, once. A rule that the call has both added and removed is in
// none.
func (b *bundle) mergeChanges() {
	c := &b.changes
	if len(c.Added)+len(c.Modified)+len(c.Removed) > 0 {
		b.p.generation++
	}
	fresh := make(map[*Rule]bool, len(c.Added))
	for _, r := range c.Added {
		fresh[r] = true
	}
	c.Removed = slices.DeleteFunc(c.Removed, func(r *Rule) bool { return fresh[r] })
	c.Added = slices.DeleteFunc(c.Added, func(r *Rule) bool { return r.Removed })
	seen := make(map[*Rule]bool)
	c.Modified = slices.DeleteFunc(c.Modified, func(r *Rule) bool {
		drop := r.Removed || fresh[r] || seen[r]
		seen[r] = true
		return drop
	})
}

// apply makes the change m. If this removes the last learn action with delete_learned for some table and
// cookie, it also deletes the flows with this table and cookie. After an error, the caller must call
// undoSince.
func (b *bundle) apply(m *openflow.FlowMod) error {
	err := b.do(m)
	if err == nil {
		b.p.takeOrphans(func(r *Rule) { b.remove(r, WhyDeleted) })
	}
	return err
}

func (b *bundle) do(m *openflow.FlowMod) error {
	if err := b.refuses(m); err != nil {
		return err
	}
	if err := b.p.checkTLVs(m); err != nil {
		return err
	}
	switch m.Command {
	case openflow.Add:
		return b.add(m)
	case openflow.Modify, openflow.ModifyStrict:
		found := b.selected(m)
		if err := b.p.CheckReferences(m.Actions); err != nil {
			return err
		}
		for _, r := range found {
			b.modify(r, m)
		}
		if len(found) == 0 && m.CookieMask == 0 && !m.ModifyOnly {
			return b.add(m)
		}
		return nil
	}
	for _, r := range b.selected(m) {
		b.remove(r, WhyDeleted)
	}
	return nil
}

func (b *bundle) add(m *openflow.FlowMod) error {
	table := m.Table
	if table == openflow.TableAll {
		table = 0
	}
	c := &b.p.tables[table]
	old := c.find(m.Match, m.Priority)
	if old != nil {
		b.remove(old, WhyDeleted)
	}
	if m.Flags&openflow.CheckOverlap != 0 {
		if r := c.overlapping(m.Match, m.Priority); r != nil {
			return openflow.Errorf(openflow.ErrFlowOverlap, "check_overlap: expected no flow of priority %d in table %d that overlaps, and there is %s",
				m.Priority, table, quoteMatch(r))
		}
	}
	if err := b.p.CheckReferences(m.Actions); err != nil {
		return err
	}
	if err := b.makeRoom(table, m); err != nil {
		return err
	}
	if learned := b.p.common.learned; m.Learner != 0 && !learned.MayHave(m.Learner, 1) {
		learned.Refuse(m.Learner)
		return openflow.Errorf(openflow.ErrFlowTableFull, "table %d: the frames of a port have taught as many flows as they may", table)
	}
	const ofAdd = openflow.CheckOverlap | openflow.ResetCounts
	r := &Rule{Table: table, Bridge: b.p.bridge, learner: m.Learner, Priority: m.Priority, Match: m.Match, Cookie: m.NewCookie, IdleTimeout: m.IdleTimeout,
		HardTimeout: m.HardTimeout, Importance: m.Importance, Flags: m.Flags &^ ofAdd, AddFlags: m.Flags & ofAdd,
		Actions: m.Actions, CreatedNS: b.nowNS, ModifiedNS: b.nowNS}
	if old != nil && m.KeepCounts {
		r.Packets, r.Bytes = old.Packets, old.Bytes
	}
	b.p.insert(r, b.p.takeSlot())
	b.changes.Added = append(b.changes.Added, r)
	b.undo = append(b.undo, func() {
		b.p.detach(r, WhyDeleted)
		b.p.free = append(b.p.free, r.Slot)
	})
	return nil
}

func quoteMatch(r *Rule) string {
	if text := r.Match.Format(nil); text != "" {
		return text
	}
	return "one that matches everything"
}

func (b *bundle) modify(r *Rule, m *openflow.FlowMod) {
	was := *r
	b.undo = append(b.undo, func() {
		b.p.setActions(r, was.Actions, was.Cookie)
		r.ModifiedNS, r.Packets, r.Bytes = was.ModifiedNS, was.Packets, was.Bytes
	})
	cookie := r.Cookie
	if m.ModifyCookie {
		cookie = m.NewCookie
	}
	b.p.setActions(r, m.Actions, cookie)
	r.ModifiedNS = b.nowNS
	if m.Flags&openflow.ResetCounts != 0 {
		r.Packets, r.Bytes = 0, 0
	}
	b.changes.Modified = append(b.changes.Modified, r)
}

func (p *Tables) setActions(r *Rule, actions []openflow.Action, cookie uint64) {
	old := r.Actions
	p.noteLearned(r, -1)
	r.Actions, r.Cookie, r.conjunctive = actions, cookie, openflow.IsConjunctive(actions)
	p.noteLearned(r, 1)
	p.noteActions(actions, 1)
	p.noteActions(old, -1)
}

func (b *bundle) remove(r *Rule, reason Why) {
	b.p.detach(r, reason)
	b.p.leaving = append(b.p.leaving, r.Slot)
	b.changes.Removed = append(b.changes.Removed, r)
	b.undo = append(b.undo, func() { b.p.insert(r, r.Slot) })
}

func (p *Tables) takeSlot() uint32 {
	if n := len(p.free); n > 0 {
		slot := p.free[n-1]
		p.free = p.free[:n-1]
		return slot
	}
	p.rules = append(p.rules, nil)
	return uint32(len(p.rules) - 1)
}

func (p *Tables) insert(r *Rule, slot uint32) {
	r.Slot, r.Removed, r.Why, r.conjunctive = slot, false, NotRemoved, openflow.IsConjunctive(r.Actions)
	p.rules[slot] = r
	p.tables[r.Table].insert(r)
	p.count++
	p.common.count++
	p.noteLearner(r, 1)
	p.counts[r.Table]++
	p.noteLearned(r, 1)
	p.noteActions(r.Actions, 1)
}

func (p *Tables) detach(r *Rule, reason Why) {
	r.Removed, r.Why = true, reason
	p.rules[r.Slot] = nil
	p.tables[r.Table].remove(r)
	p.count--
	p.common.count--
	p.noteLearner(r, -1)
	p.counts[r.Table]--
	p.noteActions(r.Actions, -1)
	p.noteLearned(r, -1)
}
