// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"maps"
	"slices"
)

// GroupType is the way in which a group selects the buckets that it executes.
type GroupType uint8

// Types, with the words of ovs-ofctl(8).
const (
	GroupAll      GroupType = iota // every bucket gets a copy of the frame
	GroupSelect                    // executes one live bucket, selected by a hash of the connection
	GroupIndirect                  // the only bucket
	GroupFailover                  // the first live bucket
)

var groupTypeWords = [...]string{"all", "select", "indirect", "ff"}

// Limits of groups.
const (
	// MaxGroup is the highest group number.
	MaxGroup = 0xffffff00
	// GroupAny selects all groups in deletes and lists.
	GroupAny = 0xffffffff
	// MaxGroups bounds the groups of a pipeline, MaxBuckets the buckets of one group.
	// A change beyond a limit fails.
	MaxGroups  = 1 << 16
	MaxBuckets = 1 << 10
)

// Bucket is an action set of a group.
type Bucket struct {
	ID     uint32
	Weight uint16 // for GroupSelect
	// The bucket is live while the port WatchPort or the group WatchGroup is live.
	// PortNone and GroupAny mean that the bucket does not watch a port or a group. A
	// bucket that watches neither is always live.
	WatchPort, WatchGroup uint32
	Actions               []Action
	Set                   []Action // Actions in order of execution, which ParseGroupMod and NewGroup fill
}

// Group is an entry of the group table, immutable in a pipeline: a modification
// replaces it.
type Group struct {
	ID      uint32
	Type    GroupType
	Buckets []Bucket
	// Method is the selection_method: "", hash or dp_hash, which use the same hash.
	// Param is added to the hash. Fields are the hashed fields; "": addresses and
	// ports.
	Method string
	Param  uint64
	Fields string
	hashed []FieldID // parsed Fields
}

// GroupCommand is the command of a GroupMod.
type GroupCommand uint8

// Commands.
const (
	GroupAdd    GroupCommand = iota
	GroupModify              // fails if the group does not exist
	GroupPut                 // adds or modifies
	GroupDelete              // deletes the group and its flows; ID GroupAny: all groups
)

// GroupMod is one change of the group table.
type GroupMod struct {
	Command GroupCommand
	Group   Group
	Line    int // line number, see FlowMod.Line
	// TLVs is the TLV map of the fields tun_metadata in the actions; nil: they have no such
	// field. A change is refused if the bridge now maps one of these fields otherwise.
	TLVs *TLVMap
}

// ApplyGroups applies all changes in mods, in order, or none and returns an
// *ApplyError. Deleting a group also deletes the flows that name it. nowNS is
// CLOCK_MONOTONIC.
func (p *Pipeline) ApplyGroups(mods []GroupMod, nowNS uint64) (Changes, error) {
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
func (b *bundle) applyGroups(mods []GroupMod) error {
	p := b.p
	groups := maps.Clone(p.groups)
	if groups == nil {
		groups = make(map[uint32]*Group)
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
		if r != nil && refersTo(r.Actions, ActGroup, func(id uint32) bool { return gone[id] && groups[id] == nil }) {
			b.remove(r, WhyGroup)
		}
	}
	p.takeOrphans(func(r *Rule) { b.remove(r, WhyDeleted) })
	return nil
}

func applyGroup(groups map[uint32]*Group, removed map[uint32]bool, m *GroupMod) error {
	g := m.Group
	old := groups[g.ID]
	switch {
	case m.Command == GroupDelete && g.ID == GroupAny:
		for id := range groups {
			removed[id] = true
		}
		clear(groups)
		return nil
	case m.Command == GroupDelete:
		removed[g.ID] = true
		delete(groups, g.ID)
		return nil
	case m.Command == GroupAdd && old != nil:
		return codedf(ErrGroupExists, "group %d: expected a number that no group has", g.ID)
	case m.Command == GroupModify && old == nil:
		return codedf(ErrGroupUnknown, "group %d: there is no such group; expected the number of one", g.ID)
	case old == nil && len(groups) >= MaxGroups:
		return codedf(ErrGroupOutOfGroups, "group %d: expected at most %d groups", g.ID, MaxGroups)
	}
	groups[g.ID] = &g
	return nil
}

// refersTo reports whether an action of the list names a group or meter for which
// selected returns true. kind is ActGroup or ActMeter.
func refersTo(actions []Action, kind ActionKind, selected func(id uint32) bool) bool {
	for i := range actions {
		a := &actions[i]
		if kind == ActMeter && a.Kind == ActController && a.Controller.Meter != 0 && selected(a.Controller.Meter) {
			return true
		}
		if a.Kind == kind && selected(uint32(a.Value[1])) || refersTo(a.Sub, kind, selected) {
			return true
		}
	}
	return false
}

// CheckReferences returns an error if actions name a missing group or meter.
func (p *Pipeline) CheckReferences(actions []Action) error {
	var missing uint32
	if refersTo(actions, ActGroup, func(id uint32) bool { missing = id; return p.groups[id] == nil }) {
		return codedf(ErrActionBadOutGroup, "group:%d: there is no such group; expected add-group first", missing)
	}
	if refersTo(actions, ActMeter, func(id uint32) bool { missing = id; return p.meters[id] == nil }) {
		return codedf(ErrMeterInvalid, "meter:%d: there is no such meter; expected add-meter first", missing)
	}
	return nil
}

// Group returns the group with this number, or nil.
func (p *Pipeline) Group(id uint32) *Group { return p.groups[id] }

// Groups returns the group with this number, or for GroupAny all groups by number.
func (p *Pipeline) Groups(id uint32) []*Group {
	var list []*Group
	for _, g := range p.groups {
		if id == GroupAny || g.ID == id {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b *Group) int { return int(int64(a.ID) - int64(b.ID)) })
	return list
}

// String returns the type's word in ovs-ofctl(8).
func (t GroupType) String() string { return groupTypeWords[t] }

// WatchesPorts reports whether the liveness of a port matters to a bucket of any group, or
// to a bundle action of any flow.
func (p *Pipeline) WatchesPorts() bool { return p.watching || p.bundles > 0 }

func watchesPorts(groups map[uint32]*Group) bool {
	for _, g := range groups {
		for i := range g.Buckets {
			if g.Buckets[i].WatchPort != PortNone {
				return true
			}
		}
	}
	return false
}
