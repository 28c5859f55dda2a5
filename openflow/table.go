// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
)

// Command is the command of a FlowMod.
type Command uint8

// Commands.
const (
	Add          Command = iota // adds a rule; replaces a rule with equal match and priority
	Modify                      // changes the actions of all rules within Match; without any, adds one
	ModifyStrict                // changes the rule with equal match and priority; without one, adds it
	Delete                      // deletes all rules within Match
	DeleteStrict                // deletes the rule with equal match and equal priority
)

const (
	// Tables is the number of flow tables. Their numbers are 0 to 254.
	Tables = 255
	// TableAll selects all tables in changes and filters, the current table in
	// resubmit.
	TableAll = 0xff
	// DefaultPriority is the priority of a flow without one in its text.
	DefaultPriority = 32768
	// MaxRules is the largest number of flows of a switch. Further flows are refused.
	MaxRules = 1 << 20
	// DefaultRules is the largest number of rules in a pipeline without Limits. An
	// add beyond it fails.
	DefaultRules = 2 << 20
)

// Flags of a FlowMod and a Rule.
type Flags uint16

// Flags, with the words of ovs-ofctl(8).
const (
	SendFlowRem Flags = 1 << iota
	CheckOverlap
	ResetCounts
	NoPacketCounts
	NoByteCounts
)

// FlowMod is one change of the flow tables. It also serves as a filter that selects
// rules.
type FlowMod struct {
	Command  Command
	Table    uint8 // table number; TableAll: table 0 in an add, otherwise every table
	Priority uint16
	Match    PackedMatch
	// Cookie and CookieMask select rules by their cookie. NewCookie is the cookie of
	// added rules. If ModifyCookie is set, modified rules also get NewCookie.
	Cookie, CookieMask, NewCookie uint64
	ModifyCookie                  bool
	// ByOutPort selects only rules that output to OutPort.
	ByOutPort bool
	// ByOutGroup selects only rules that name group OutGroup.
	ByOutGroup bool
	// KeepCounts makes an add that replaces a rule keep the rule's counters, as
	// OpenFlow 1.3 says. Without KeepCounts they are 0, as with OpenFlow 1.0.
	KeepCounts bool
	// ModifyOnly keeps a modify that finds no rule from adding one, as OpenFlow 1.3
	// says.
	ModifyOnly               bool
	OutGroup                 uint32
	OutPort                  uint32
	IdleTimeout, HardTimeout uint16 // seconds, 0: none
	Importance               uint16
	Flags                    Flags
	// LearnLimit is the largest number of flows with this Table and NewCookie that
	// ApplyLearned allows; 0: no limit.
	LearnLimit uint32
	Actions    []Action
	// Notes are remarks for the operator about the text, one line each.
	Notes []string
	// Bridge is the bridge of a learnt flow.
	Bridge uint8
	// TLVs is the TLV map of the fields tun_metadata in Match and Actions; nil: they have
	// no such field. An add or modify is refused if the bridge now maps one of these fields
	// otherwise.
	TLVs *TLVMap
	// Line is the line number in a file of flows, from 1 on; 0: no file.
	Line int
}

// Rule is a flow in a table. A modify replaces Actions, Cookie and ModifiedNS. Credit
// changes the counters and UsedNS. Finished.ReduceTimeouts shortens the timeouts. All
// other fields are constant.
type Rule struct {
	// Slot is the rule's index in the pipeline. The slot of a removed rule is free
	// after the next Apply or Expire.
	Slot                     uint32
	Table                    uint8
	Bridge                   uint8 // number of the pipeline's bridge
	Priority                 uint16
	IdleTimeout, HardTimeout uint16 // seconds, 0: none
	Importance               uint16
	Flags                    Flags
	// Removed is true once the rule has left its table.
	Removed bool
	Why     Why // reason of its removal
	// conjunctive is true if Actions has conjunctions.
	conjunctive bool
	// Row is the number that control gives the rule.
	Row     uint32
	Cookie  uint64
	Match   PackedMatch
	Actions []Action
	// CreatedNS and ModifiedNS are the times of the add and the last change,
	// CLOCK_MONOTONIC.
	CreatedNS, ModifiedNS uint64
	// Packets and Bytes count the frames that matched the rule. UsedNS is the time of
	// the last such frame (CLOCK_MONOTONIC; 0: never).
	Packets, Bytes, UsedNS uint64

	next *Rule // next rule in the classifier with the same hash
}

// Credit adds packets and bytes to the counters of r. usedNS is the time of the last
// packet (CLOCK_MONOTONIC). It needs exclusive access to the pipeline.
func (r *Rule) Credit(packets, bytes, usedNS uint64) {
	r.Packets += packets
	r.Bytes += bytes
	r.UsedNS = max(r.UsedNS, usedNS)
}

// FlowMod returns the Add command that would create an equal rule. The command shares
// the slice Actions with r.
func (r *Rule) FlowMod() FlowMod {
	return FlowMod{Command: Add, Table: r.Table, Priority: r.Priority, Match: r.Match, NewCookie: r.Cookie,
		ModifyCookie: true, IdleTimeout: r.IdleTimeout, HardTimeout: r.HardTimeout, Importance: r.Importance,
		Flags: r.Flags, Actions: r.Actions}
}

// Limits has the limits that the pipelines of all bridges share.
type Limits struct {
	Rules int // rules in all tables; 0: DefaultRules
}

// Changes lists the rules that an Apply has added, modified and removed. A replaced
// rule is in Removed.
type Changes struct {
	Added, Modified, Removed []*Rule
}

// Pipeline is the set of flow tables of one bridge, with its groups and meters. See the
// package comment for concurrency.
type Pipeline struct {
	tables     [Tables]classifier
	rules      []*Rule  // index: slot
	free       []uint32 // slots that can be used again
	leaving    []uint32 // slots of removed rules, which are free from the next change on
	count      int
	common     *common
	bridge     uint8
	config     [Tables]TableConfig
	counts     [Tables]int
	groups     map[uint32]*Group
	groupStats map[uint32]*GroupStats // by group number
	watching   bool                   // at least one group watches a port
	bundles    int                    // number of bundle actions of all rules
	meters     map[uint32]*Meter
	// counts for each table and cookie of learn actions that have a limit or
	// delete_learned
	learnt     map[learnKey]*learnGroup
	orphans    []learnKey // tables and cookies whose last learn action with delete_learned is gone
	generation uint64
	lookups    [Tables]TableLookups
	// missToController sends frames that match no flow to the controller.
	// expiredToController sends frames whose TTL dec_ttl finds expired. See
	// SendExceptions.
	missToController    bool
	expiredToController bool
	tlvs                atomic.Pointer[TLVMap] // parsers and formatters read it without a lock
}

// TableLookups counts the look-ups of a table since the start of the control process.
type TableLookups struct {
	All     uint64
	Matched uint64 // found a flow
}

// CreditLookups counts the look-ups of packets: one for each of rules and one for each
// table in missed. It leaves out those of other bridges. It needs exclusive access to the
// pipeline.
func (p *Pipeline) CreditLookups(rules []*Rule, missed []BridgeTable, packets uint64) {
	for _, r := range rules {
		if r.Bridge == p.bridge {
			p.lookups[r.Table].All += packets
			p.lookups[r.Table].Matched += packets
		}
	}
	for _, m := range missed {
		if m.Bridge == p.bridge {
			p.lookups[m.Table].All += packets
		}
	}
}

// Lookups returns the look-ups of a table.
func (p *Pipeline) Lookups(table uint8) TableLookups { return p.lookups[table] }

// NewPipeline returns a pipeline without rules.
func NewPipeline(l Limits) *Pipeline {
	if l.Rules == 0 {
		l.Rules = DefaultRules
	}
	return &Pipeline{common: &common{limit: l.Rules}}
}

// Len returns the number of rules.
func (p *Pipeline) Len() int { return p.count }

// Generation returns a number that changes with every change of rules, groups or
// meters.
func (p *Pipeline) Generation() uint64 { return p.generation }

// Rule returns the rule that has this slot, or nil.
func (p *Pipeline) Rule(slot uint32) *Rule {
	if int(slot) >= len(p.rules) {
		return nil
	}
	return p.rules[slot]
}

// ApplyError is the error of an Apply, with the index of the change that failed.
type ApplyError struct {
	Index int // index of the change
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

// bundle is an Apply in progress, with functions that undo its changes.
type bundle struct {
	p       *Pipeline
	nowNS   uint64
	central bool // the changes are weft-central's
	changes Changes
	undo    []func()
	victims map[uint8][]*Rule // candidates for eviction, by table
}

// Apply applies all changes in mods, in order. If a change fails, Apply makes no change
// and returns an *ApplyError. nowNS is CLOCK_MONOTONIC. The pipeline keeps the Actions
// of mods; the caller must not modify them any more. Apply refuses changes of
// CentralTable.
func (p *Pipeline) Apply(mods []FlowMod, nowNS uint64) (Changes, error) {
	return p.applyAll(bundle{p: p, nowNS: nowNS}, mods)
}

func (p *Pipeline) applyAll(b bundle, mods []FlowMod) (Changes, error) {
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

// bundleMark is a point in a bundle to which undoSince can return.
type bundleMark struct{ undo, leaving, added, modified, removed int }

func (b *bundle) mark() bundleMark {
	c := &b.changes
	return bundleMark{len(b.undo), len(b.p.leaving), len(c.Added), len(c.Modified), len(c.Removed)}
}

// undoSince undoes all changes since m.
func (b *bundle) undoSince(m bundleMark) {
	for _, undo := range slices.Backward(b.undo[m.undo:]) {
		undo()
	}
	c := &b.changes
	b.undo, c.Added, c.Modified, c.Removed = b.undo[:m.undo], c.Added[:m.added], c.Modified[:m.modified], c.Removed[:m.removed]
	// the undo restored rules that the list of eviction candidates lacks
	b.p.leaving, b.p.orphans, b.victims = b.p.leaving[:m.leaving], nil, nil
}

// releaseSlots frees the slots of the previous change's removed rules.
func (p *Pipeline) releaseSlots() {
	p.free = append(p.free, p.leaving...)
	p.leaving = p.leaving[:0]
}

// mergeChanges removes duplicates, because one Apply may change a rule more than
// once.
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

// apply makes the change m. After an error, the caller must undo it.
func (b *bundle) apply(m *FlowMod) error {
	err := b.do(m)
	if err == nil {
		b.p.takeOrphans(func(r *Rule) { b.remove(r, WhyDeleted) })
	}
	return err
}

func (b *bundle) do(m *FlowMod) error {
	if err := b.refuses(m); err != nil {
		return err
	}
	if err := b.p.checkTLVs(m); err != nil {
		return err
	}
	switch m.Command {
	case Add:
		return b.add(m)
	case Modify, ModifyStrict:
		found := b.selected(m)
		if err := b.p.checkReferences(m.Actions); err != nil {
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

func (b *bundle) add(m *FlowMod) error {
	table := m.Table
	if table == TableAll {
		table = 0
	}
	c := &b.p.tables[table]
	old := c.find(m.Match, m.Priority)
	if old != nil {
		b.remove(old, WhyDeleted)
	}
	if m.Flags&CheckOverlap != 0 {
		if r := c.overlapping(m.Match, m.Priority); r != nil {
			return codedf(ErrFlowOverlap, "check_overlap: expected no flow of priority %d in table %d that overlaps, and there is %s",
				m.Priority, table, quoteMatch(r))
		}
	}
	if err := b.p.checkReferences(m.Actions); err != nil {
		return err
	}
	if err := b.makeRoom(table, m); err != nil {
		return err
	}
	r := &Rule{Table: table, Bridge: b.p.bridge, Priority: m.Priority, Match: m.Match, Cookie: m.NewCookie, IdleTimeout: m.IdleTimeout,
		HardTimeout: m.HardTimeout, Importance: m.Importance, Flags: m.Flags &^ (CheckOverlap | ResetCounts),
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

func (b *bundle) modify(r *Rule, m *FlowMod) {
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
	if m.Flags&ResetCounts != 0 {
		r.Packets, r.Bytes = 0, 0
	}
	b.changes.Modified = append(b.changes.Modified, r)
}

func (p *Pipeline) setActions(r *Rule, actions []Action, cookie uint64) {
	old := r.Actions
	p.noteLearnt(r, -1)
	r.Actions, r.Cookie, r.conjunctive = actions, cookie, isConjunctive(actions)
	p.noteLearnt(r, 1)
	p.noteActions(actions, 1)
	p.noteActions(old, -1)
}

func (b *bundle) remove(r *Rule, reason Why) {
	b.p.detach(r, reason)
	b.p.leaving = append(b.p.leaving, r.Slot)
	b.changes.Removed = append(b.changes.Removed, r)
	b.undo = append(b.undo, func() { b.p.insert(r, r.Slot) })
}

func (p *Pipeline) takeSlot() uint32 {
	if n := len(p.free); n > 0 {
		slot := p.free[n-1]
		p.free = p.free[:n-1]
		return slot
	}
	p.rules = append(p.rules, nil)
	return uint32(len(p.rules) - 1)
}

func (p *Pipeline) insert(r *Rule, slot uint32) {
	r.Slot, r.Removed, r.Why, r.conjunctive = slot, false, NotRemoved, isConjunctive(r.Actions)
	p.rules[slot] = r
	p.tables[r.Table].insert(r)
	p.count++
	p.common.count++
	p.counts[r.Table]++
	p.noteLearnt(r, 1)
	p.noteActions(r.Actions, 1)
}

func (p *Pipeline) detach(r *Rule, reason Why) {
	r.Removed, r.Why = true, reason
	p.rules[r.Slot] = nil
	p.tables[r.Table].remove(r)
	p.count--
	p.common.count--
	p.counts[r.Table]--
	p.noteActions(r.Actions, -1)
	p.noteLearnt(r, -1)
}

// Expire removes the rules whose timeout has passed. The hard timeout counts from the
// last change of the rule, the idle timeout from its last hit. Rule.Why names the
// timeout that passed; if both have passed, the hard timeout.
func (p *Pipeline) Expire(nowNS uint64) []*Rule {
	const second = 1_000_000_000
	var gone []*Rule
	p.releaseSlots()
	take := func(r *Rule, reason Why) {
		p.detach(r, reason)
		p.leaving = append(p.leaving, r.Slot)
		gone = append(gone, r)
	}
	for _, r := range p.rules {
		if r == nil || r.IdleTimeout == 0 && r.HardTimeout == 0 {
			continue
		}
		idle := max(r.UsedNS, r.ModifiedNS) + uint64(r.IdleTimeout)*second
		hard := r.ModifiedNS + uint64(r.HardTimeout)*second
		reason := NotRemoved
		switch {
		case r.HardTimeout != 0 && nowNS >= hard:
			reason = WhyHard
		case r.IdleTimeout != 0 && nowNS >= idle:
			reason = WhyIdle
		default:
			continue
		}
		take(r, reason)
	}
	p.takeOrphans(func(r *Rule) { take(r, WhyDeleted) })
	if len(gone) > 0 {
		p.generation++
	}
	return gone
}

// Select returns the rules to which a filter (from ParseFilter) applies, sorted by
// table, then from the highest priority down, then from the oldest.
func (p *Pipeline) Select(filter *FlowMod) []*Rule {
	rules := p.selectRules(filter)
	slices.SortStableFunc(rules, func(a, b *Rule) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority),
			cmp.Compare(a.CreatedNS, b.CreatedNS), cmp.Compare(a.Slot, b.Slot))
	})
	return rules
}

// selectRules returns the rules that the modify or delete m affects.
func (p *Pipeline) selectRules(m *FlowMod) []*Rule {
	var found []*Rule
	if m.Command == ModifyStrict || m.Command == DeleteStrict {
		for t := range p.tables {
			if m.Table != TableAll && m.Table != uint8(t) {
				continue
			}
			if r := p.tables[t].find(m.Match, m.Priority); r != nil && m.selects(r) {
				found = append(found, r)
			}
		}
		return found
	}
	within := m.Match.Unpack()
	for _, r := range p.rules {
		if r != nil && m.selects(r) && r.Match.Within(&within) {
			found = append(found, r)
		}
	}
	return found
}

func outputsTo(actions []Action, port uint32) bool {
	for i := range actions {
		if actions[i].Kind == ActOutput && actions[i].Port == port || actions[i].Kind == ActController && port == PortController || outputsTo(actions[i].Sub, port) {
			return true
		}
	}
	return false
}
