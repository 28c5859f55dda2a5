// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"maps"
	"slices"

	"weft/openflow"
)

// ApplyGroups applies all changes of groups in mods, in order. If one fails, it makes no change and returns
// an *ApplyError. If a change deletes a group, the flows with an action for this group are deleted, too.
// nowNS is CLOCK_MONOTONIC.
func (p *Tables) ApplyGroups(mods []openflow.GroupMod, nowNS uint64) (Changes, error) {
	p.releaseSlots()
	b := bundle{p: p, nowNS: nowNS}
	start := b.mark()
	if err := b.applyGroups(mods); err != nil {
		b.undoSince(start)
		return Changes{}, err
	}
	p.generation++
	b.mergeChanges()
	return b.changes, nil
}

// applyGroups makes changes of the group table. If it returns an error, the group table
// is unchanged.
func (b *bundle) applyGroups(mods []openflow.GroupMod) error {
	p := b.p
	groups := maps.Clone(p.groups)
	if groups == nil {
		groups = make(map[uint32]*openflow.Group)
	}
	gone := make(map[uint32]bool)
	for i := range mods {
		err := p.checkGroupTLVs(&mods[i])
		if err == nil {
			err = applyGroup(groups, gone, &mods[i])
		}
		if err != nil {
			return &ApplyError{Index: i, Line: mods[i].Line, Err: err}
		}
	}
	before, stats := p.groups, p.groupStats
	b.undo = append(b.undo, func() { p.groups, p.groupStats, p.watching = before, stats, watchesPorts(before) })
	p.groups, p.watching = groups, watchesPorts(groups)
	p.startGroupStats(before, b.nowNS)
	if len(gone) == 0 {
		return nil
	}
	for _, r := range p.rules {
		if r != nil && refersTo(r.Actions, openflow.ActGroup, func(id uint32) bool { return gone[id] && groups[id] == nil }) {
			b.remove(r, WhyGroup)
		}
	}
	p.takeOrphans(func(r *Rule) { b.remove(r, WhyDeleted) })
	return nil
}

func applyGroup(groups map[uint32]*openflow.Group, removed map[uint32]bool, m *openflow.GroupMod) error {
	g := m.Group
	old := groups[g.ID]
	switch {
	case m.Command == openflow.GroupDelete && g.ID == openflow.GroupAny:
		for id := range groups {
			removed[id] = true
		}
		clear(groups)
		return nil
	case m.Command == openflow.GroupDelete:
		removed[g.ID] = true
		delete(groups, g.ID)
		return nil
	case m.Command == openflow.GroupAdd && old != nil:
		return openflow.Errorf(openflow.ErrGroupExists, "group %d: expected a number that no group has", g.ID)
	case m.Command == openflow.GroupModify && old == nil:
		return openflow.Errorf(openflow.ErrGroupUnknown, "group %d: there is no such group; expected the number of one", g.ID)
	case old == nil && len(groups) >= openflow.MaxGroups:
		return openflow.Errorf(openflow.ErrGroupOutOfGroups, "group %d: expected at most %d groups", g.ID, openflow.MaxGroups)
	}
	groups[g.ID] = &g
	return nil
}

// refersTo reports whether one of the actions, or a nested action, names a group or meter for whose number
// the function selected returns true. kind is ActGroup or ActMeter.
func refersTo(actions []openflow.Action, kind openflow.ActionKind, selected func(id uint32) bool) bool {
	for i := range actions {
		a := &actions[i]
		if kind == openflow.ActMeter && a.Kind == openflow.ActController && a.Controller.Meter != 0 && selected(a.Controller.Meter) {
			return true
		}
		if a.Kind == kind && selected(uint32(a.Value[1])) || refersTo(a.Sub, kind, selected) {
			return true
		}
	}
	return false
}

// CheckReferences returns an error if the actions name a group or meter that does not exist in
// the bridge.
func (p *Tables) CheckReferences(actions []openflow.Action) error {
	var missing uint32
	if refersTo(actions, openflow.ActGroup, func(id uint32) bool { missing = id; return p.groups[id] == nil }) {
		return openflow.Errorf(openflow.ErrActionBadOutGroup, "group:%d: there is no such group; expected add-group first", missing)
	}
	if refersTo(actions, openflow.ActMeter, func(id uint32) bool { missing = id; return p.meters[id] == nil }) {
		return openflow.Errorf(openflow.ErrMeterInvalid, "meter:%d: there is no such meter; expected add-meter first", missing)
	}
	return nil
}

// Group returns the group with this number, or nil.
func (p *Tables) Group(id uint32) *openflow.Group { return p.groups[id] }

// Groups returns a list with the group of this number. For GroupAny, it returns all groups, in the order of
// their numbers.
func (p *Tables) Groups(id uint32) []*openflow.Group {
	var list []*openflow.Group
	for _, g := range p.groups {
		if id == openflow.GroupAny || g.ID == id {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b *openflow.Group) int { return int(int64(a.ID) - int64(b.ID)) })
	return list
}

// WatchesPorts reports whether a translation may depend on the liveness of a port. That is so if a bucket of
// a group watches a port, or if a flow has a bundle action.
func (p *Tables) WatchesPorts() bool { return p.watching || p.bundles > 0 }

func watchesPorts(groups map[uint32]*openflow.Group) bool {
	for _, g := range groups {
		for i := range g.Buckets {
			if g.Buckets[i].WatchPort != openflow.PortNone {
				return true
			}
		}
	}
	return false
}
