// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"weft/flowtable"
	"weft/openflow/fdb"
	"weft/packet"
)

// Limits of one translation, as in ovs-actions(7), "Error Handling". A translation that
// exceeds a limit, or flowtable.MaxActions, ends. Earlier outputs remain, and the frame
// is counted as packet.DropLoop.
const (
	// MaxResubmits is the largest number of resubmit and goto_table actions.
	MaxResubmits = 4096
	// MaxDepth is the deepest nesting of resubmits to the same or an earlier table.
	MaxDepth = 64
	// maxMissed is the largest number of look-ups without a matching flow that one
	// translation counts. The table statistics leave out further ones.
	maxMissed = 64
)

// Translation is a megaflow with its side effects. It points to rules and groups of
// the pipeline.
type Translation struct {
	// Mask has the bits of the key on which the result depends. All keys that agree on
	// these bits have an equal Translation, except that Mask itself may differ.
	Mask flowtable.Key
	// Actions has 1 to flowtable.MaxActions datapath actions.
	Actions []flowtable.Action
	// Rules lists the matching rules in order, possibly several times.
	Rules []*Rule
	// Missed lists the tables in which a look-up found no flow, in order; at most
	// maxMissed.
	Missed []BridgeTable
	// Groups lists the executed groups and buckets, in order.
	Groups []GroupHit
	// Drop is the reason why the frame is not sent, or DropNone. If Drop is DropLoop,
	// some outputs may have been executed.
	Drop packet.DropReason
	// Learns has the address that normal learns, at most one in each bridge.
	Learns []fdb.Learn
	// Patches lists the crossings of patch ports, in order.
	Patches []Crossing
	// Question is the address with an unknown location that the frame needs. If nobody
	// has the address, the translation is right as it is.
	Question Question
	MustAsk  bool // weft-central's network sends addresses only on demand (Network.Asked)
	// Refused is true if a quota of the input port refused the recirc_id or the Geneve
	// options that the translation needs. The drop is right only while the quota is used up.
	Refused bool
	// Learned lists the flows of learn actions, in order. Control adds those that the
	// tables lack (Pipeline.Learnt), and refreshes the timeouts of flows that the
	// tables have.
	Learned []FlowMod
	// Finished lists the flows whose timeouts each frame changes, because of
	// fin_timeout.
	Finished []Finished
	// Tables has the tables that the translation searched. It also has tables in which
	// a learn action with a limit counts flows.
	Tables TableSet
	// Addresses are the addresses on which the result depends, in order of use.
	Addresses []fdb.Ref
	// UsedPorts is true if the result depends on the set of existing ports. A
	// dependence on the ports in Actions does not count.
	UsedPorts bool
}

// TableSet is a set of tables.
type TableSet [4]uint64

// Add adds a table to the set.
func (s *TableSet) Add(table uint8) { s[table/64] |= 1 << (table % 64) }

// Meets reports whether the sets have a table in common.
func (s *TableSet) Meets(o *TableSet) bool {
	return s[0]&o[0]|s[1]&o[1]|s[2]&o[2]|s[3]&o[3] != 0
}

// TraceStep is one step of a translation, as Trace reports it to its hook.
type TraceStep struct {
	Bridge uint8   // bridge of the table
	Depth  int     // nesting of resubmits
	Table  uint8   // table of the look-up or of the actions
	Lookup bool    // look-up in Table; false: an action or a note
	Rule   *Rule   // result of the look-up; nil: none
	Action *Action // action to execute
	Flow   Flow    // flow before the step
	Note   string  // text of a note, or a remark on a look-up
	Recirc uint32  // recirc_id of a second look-up that the data path makes of Flow; 0: none
}

// Translate runs key through the tables, starting with table 0 of the bridge to which its
// port belongs. p has the frames of unknown ports.
func (p *Pipeline) Translate(key *flowtable.Key, env Env) (t Translation) {
	p.trace(&t, key, env, nil)
	return t
}

// TranslateTo is Translate into t. It reuses the arrays of t.Actions, t.Rules, t.Missed
// and t.Addresses.
func (p *Pipeline) TranslateTo(t *Translation, key *flowtable.Key, env Env) {
	p.trace(t, key, env, nil)
}

// Trace is Translate with a call of hook for each step. hook may be nil.
func (p *Pipeline) Trace(key *flowtable.Key, env Env, hook func(TraceStep)) (t Translation) {
	p.trace(&t, key, env, hook)
	return t
}

func (p *Pipeline) trace(t *Translation, key *flowtable.Key, env Env, hook func(TraceStep)) {
	x := xlates.Get().(*xlate)
	x.begin(p, key, env, hook)
	x.arrive()
	switch table, actions, ok := x.resume(); {
	case !ok:
		x.noteDrop(packet.DropTableMiss)
	case actions != nil:
		x.continueWith(actions, table)
		x.endLists()
	case x.admit():
		x.pipeline(table, true)
		x.endLists()
	}
	x.finish(t)
}

// finish fills t, and releases the state x for reuse.
func (x *xlate) finish(t *Translation) {
	x.result(t)
	x.p, x.env, x.hook, x.rule = nil, nil, nil, nil
	clear(x.rules)
	xlates.Put(x)
}

var xlates = sync.Pool{New: func() any { return new(xlate) }}

// xlate is the state of one translation. flow is the frame after the executed OpenFlow
// actions. base is the frame after the emitted datapath actions. Before an output,
// commit emits the actions that turn base into flow (commit.go).
//
// Soundness: keep has the bits of flow that still come from the arriving frame. All
// code reads flow through look. look adds the bits that were read, as far as they are
// in keep, to the megaflow's mask wc. Bits outside of keep were set by actions, or
// follow from bits that were already read.
type xlate struct {
	p    *Pipeline
	env  Env
	hook func(TraceStep)
	// cameIn is the port on which the frame arrived. A stored state (Frozen) counts
	// against the quota of this port. The result depends on cameIn only if the quota
	// refuses the state; the megaflow then matches the port. In all other cases the
	// megaflow matches the port only if the translation reads inPort, or if the switch
	// has several bridges.
	cameIn uint32
	patch  uint32 // patch port through which the frame came to the bridge; 0: none

	flow, keep     Flow
	base, baseKeep Flow
	wc             Flow
	tags, baseTags tagStack
	// decs counts the dec_ttl actions since the TTL was last set. baseDecs is that
	// count for base.
	decs, baseDecs int
	dirty          bool   // flow may differ from base
	opaque         bool   // a pop has revealed headers that flow does not have
	bare           bool   // the packet has no Ethernet header for flows, see encap.go
	undone         int    // number of clones and buckets around the present list, which undo its changes
	buckets        int    // number of buckets among them
	limit          uint32 // largest length in bytes of the output in execution; 0: any
	queue          uint32 // queue of outputs, see queue.go

	actions      []flowtable.Action
	rules        []*Rule
	unmatched    []BridgeTable
	groups       []GroupHit
	actionSet    []Action
	stack        []stacked
	resubmits    int
	depth        int
	rule         *Rule             // rule in execution; nil: the action set
	table        uint8             // table of rule
	halted       bool              // a limit was reached
	paused       *pausing          // nil: no controller action with pause has ended the lists
	resumed      *continuationList // list of a continuation in execution, or nil
	continuation string            // of the controller action in execution
	exited       bool              // exit ends all lists, up to the bucket or bridge in execution
	sent         bool
	tracks       bool              // the datapath may have tracked the frame
	drop         packet.DropReason // first reason noted
	learns       []fdb.Learn
	patches      []Crossing
	toAsk        Question
	mustAsk      bool
	refused      bool // Translation.Refused
	learned      []FlowMod
	finished     []Finished
	tables       TableSet
	addresses    []fdb.Ref // at most maxAddressRefs
	usedPorts    bool
	// sentOptions and sentMeta are in force for the next tunnel output (setTunnelFields).
	sentOptions string
	sentMeta    uint64
}

func (x *xlate) begin(p *Pipeline, key *flowtable.Key, env Env, hook func(TraceStep)) {
	actions, rules, missed, addresses := x.actions[:0], x.rules[:0], x.unmatched[:0], x.addresses[:0]
	*x = xlate{}
	x.p, x.env, x.hook, x.actions, x.rules, x.unmatched, x.addresses = p, env, hook, actions, rules, missed, addresses
	copy(x.flow[:], key[:])
	x.cameIn = uint32(key[flowtable.WPort] >> 32)
	for i := range key {
		x.keep[i] = ^uint64(0)
	}
	for w := WTLVs; w < wFlowEnd; w++ {
		x.keep[w] = ^uint64(0)
	}
	x.keep[flowtable.WEthSrc] &^= allVLAN // the tag stack tracks these bits
	x.keep[wIP] &^= allVLAN << innerTCI
	x.tags = frameTags(key)
	x.base, x.baseKeep, x.baseTags = x.flow, x.keep, x.tags
}

// result fills t. It reuses the arrays that TranslateTo names.
func (x *xlate) result(t *Translation) {
	actions, rules, missed, addresses := t.Actions[:0], t.Rules[:0], t.Missed[:0], t.Addresses[:0]
	*t = Translation{}
	t.Learns, t.Patches, t.Question, t.MustAsk, t.Learned, t.Finished = x.learns, x.patches, x.toAsk, x.mustAsk, x.learned, x.finished
	t.Groups, t.Tables, t.UsedPorts, t.Refused = x.groups, x.tables, x.usedPorts, x.refused
	copy(t.Mask[:], x.wc[:flowtable.KeyWords])
	for w := WTLVs; w < wFlowEnd; w++ {
		if x.wc[w] != 0 {
			t.Mask[flowtable.WTunOpts] = ^uint64(0)
		}
	}
	switch {
	case x.halted:
		x.trim()
		t.Drop = x.drop
	case !x.sent:
		x.actions = x.actions[:0] // changes to a frame that is not sent
		t.Drop = x.drop
		if t.Drop == packet.DropNone {
			t.Drop = packet.DropFlow
		}
	}
	if t.Drop != packet.DropNone {
		x.actions = append(x.actions, flowtable.Action{Op: flowtable.OpDrop, U32: uint32(t.Drop)})
	}
	t.Actions = append(actions, x.actions...)
	t.Addresses = append(addresses, x.addresses...)
	t.Rules = append(rules, x.rules...)
	t.Missed = append(missed, x.unmatched...)
}

// trim removes the datapath actions after the last action that sends the frame.
func (x *xlate) trim() {
	n := len(x.actions)
	for n > 0 && !sends(x.actions[n-1].Op) {
		n--
	}
	x.actions = x.actions[:n]
}

func sends(op flowtable.Op) bool {
	return op == flowtable.OpOutput || op == flowtable.OpTunnel || op == flowtable.OpAnswer || op == flowtable.OpRecirc || op == flowtable.OpOutputTruncated
}

// noteDrop records the drop reason of the translation. Only the first reason counts.
func (x *xlate) noteDrop(reason packet.DropReason) {
	if x.drop == packet.DropNone {
		x.drop = reason
	}
}

// halt ends the translation at a limit.
func (x *xlate) halt(reason packet.DropReason) {
	if !x.halted {
		x.halted, x.drop = true, reason
		x.note("the translation ends: " + reason.String())
	}
}

func (x *xlate) note(text string) {
	if x.hook != nil {
		x.hook(TraceStep{Bridge: x.p.bridge, Depth: x.depth, Table: x.table, Flow: x.flow, Note: text})
	}
}

// Looking at the frame

// ttlBits is the mask of the TTL in Flow[wIP].
const ttlBits = 0xff << ttlAt

// visitWord adds the bits of mask in flow[word] to the megaflow's mask, unless actions
// have set them.
func (x *xlate) visitWord(word int, mask uint64) {
	switch word {
	case flowtable.WPort:
		// the datapath's number decides about in_port as a whole, so a read bit needs
		// all its bits
		if mask>>32 != 0 {
			mask |= 0xffffffff << 32
		}
	case flowtable.WEthSrc:
		if tci := mask & allVLAN; tci != 0 {
			x.lookTag(x.tags.tag(0), uint16(tci))
		}
	case wIP:
		if tci := mask >> innerTCI & allVLAN; tci != 0 {
			x.lookTag(x.tags.tag(1), uint16(tci))
		}
		if mask&ttlBits != 0 && x.decs > 0 {
			mask |= ttlBits // after dec_ttl, each bit of the TTL depends on all lower bits
		}
	}
	x.wc[word] |= mask & x.keep[word]
}

// visit implements visitor.
func (x *xlate) visit(words []uint8, mask *Flow) {
	for _, w := range words {
		x.visitWord(int(w), mask[w])
	}
}

// probe implements prober.
func (x *xlate) probe(word int, mask uint64) (uint64, bool) {
	x.visitWord(word, mask)
	return x.flow[word] & mask, true
}

// read returns a sub-field's value and adds its bits to the megaflow's mask.
func (x *xlate) read(s Subfield) Value128 {
	if s.Field.isTLV() {
		return x.readTLV(s)
	}
	word, hi, lo := s.mask()
	x.visitWord(word, hi)
	if lo != 0 {
		x.visitWord(word+1, lo)
	}
	return s.get(&x.flow)
}

func (x *xlate) inPort() uint32 {
	x.visitWord(flowtable.WPort, 0xffffffff<<32)
	return uint32(x.flow[flowtable.WPort] >> 32)
}

// Tables

// pipeline searches a table, executes the matching rule, and follows goto_table. If
// first is set, a frame without a matching rule is a table miss, or continues in
// CentralTable if weft-central has declared its port. If first is not set, the look-up
// is a resubmit.
func (x *xlate) pipeline(table uint8, first bool) {
	for {
		rule, conj := x.lookup(table)
		if x.hook != nil {
			x.hook(TraceStep{Bridge: x.p.bridge, Depth: x.depth, Table: table, Lookup: true, Rule: rule, Flow: x.flow, Note: noteOf(conj)})
		}
		if rule == nil {
			if first && table == 0 && x.continues() {
				table = CentralTable
				continue
			}
			switch {
			case first && x.p.missToController:
				x.missed(table)
			case first:
				x.noteDrop(packet.DropTableMiss)
			}
			return
		}
		next, jump := x.execute(rule, table)
		if !jump {
			return
		}
		table, first = next, true
	}
}

func (x *xlate) lookup(table uint8) (r *Rule, conj uint32) {
	x.tables.Add(table)
	if x.bare {
		x.noteDrop(packet.DropPacketType)
		x.note("no flow matches a packet without an Ethernet header")
		return nil, 0
	}
	r, conj = x.p.tables[table].lookup(&x.flow, x)
	if r == nil && len(x.unmatched) < maxMissed {
		x.unmatched = append(x.unmatched, BridgeTable{x.p.bridge, table})
	}
	return r, conj
}

// noteOf returns the remark on a look-up through a conjunction.
func noteOf(conj uint32) string {
	if conj == 0 {
		return ""
	}
	return fmt.Sprintf("all parts of conjunction %d match", conj)
}

// execute runs the actions of a rule. If the actions end with goto_table, jump is true
// and next is the number of the named table.
func (x *xlate) execute(rule *Rule, table uint8) (next uint8, jump bool) {
	x.rules = append(x.rules, rule)
	outer, outerTable := x.rule, x.table
	x.rule, x.table = rule, table
	next, jump = x.list(rule.Actions)
	x.rule, x.table = outer, outerTable
	if jump && !x.countResubmit() {
		return 0, false
	}
	return next, jump
}

func (x *xlate) countResubmit() bool {
	if x.resubmits == MaxResubmits {
		x.halt(packet.DropLoop)
		return false
	}
	x.resubmits++
	return true
}

// descend enters one more level of nesting. The caller leaves this level with
// x.depth--. descend returns false if a limit ends the translation.
func (x *xlate) descend() bool {
	if x.depth == MaxDepth {
		x.halt(packet.DropLoop)
		return false
	}
	if !x.countResubmit() {
		return false
	}
	x.depth++
	return true
}

// resubmit searches a table with the action's port as in_port. The actions of the
// matching rule see the frame's real in_port.
func (x *xlate) resubmit(a *Action) {
	table := a.Table
	if table == TableAll {
		table = x.table
	}
	if table > x.table {
		if !x.countResubmit() {
			return
		}
	} else {
		if !x.descend() {
			return
		}
		defer func() { x.depth-- }()
	}
	if a.Tuple && !x.hasTuple() {
		x.note("the frame has no connection: nothing is looked up")
		return
	}
	if a.Port == PortInPort && !a.Tuple {
		x.pipeline(table, false)
		return
	}
	rule := x.lookupAs(table, a)
	if x.hook != nil {
		note := "looked up with another in_port"
		if a.Tuple {
			note = "looked up with the original tuple of the connection"
		}
		x.hook(TraceStep{Bridge: x.p.bridge, Depth: x.depth, Table: table, Lookup: true, Rule: rule, Flow: x.flow, Note: note})
	}
	if rule == nil {
		return
	}
	if next, jump := x.execute(rule, table); jump {
		x.pipeline(next, true)
	}
}

// Actions

// list executes actions in order.
func (x *xlate) list(actions []Action) (next uint8, jump bool) {
	for i := range actions {
		a := &actions[i]
		if x.halted || x.exited {
			return 0, false
		}
		if x.hook != nil {
			x.hook(TraceStep{Bridge: x.p.bridge, Depth: x.depth, Table: x.table, Action: a, Flow: x.flow})
		}
		if x.suspends(a) {
			x.continueLater(actions[i:], x.suspendedNote())
			return 0, false
		}
		switch a.Kind {
		case ActGotoTable:
			return a.Table, true
		case ActDecTTL:
			if !x.decTTL() {
				return 0, false
			}
		case ActDecMPLSTTL:
			if !x.decMPLSTTL() {
				return 0, false
			}
		case ActOutput:
			x.output(a.Port)
		case ActCheckLarger:
			x.checkLarger(a, actions[i+1:])
			return 0, false
		case ActSetQueue:
			x.queue = uint32(a.Value[1])
		case ActPopQueue:
			x.queue = 0
		case ActEnqueue:
			x.enqueue(a)
		case ActEncap:
			x.encapsulate(uint32(a.Value[1]))
		case ActDecap:
			x.decapsulate(uint32(a.Value[1]))
		case ActOutputTrunc:
			x.outputTruncated(a.Port, a.Value[1])
		case ActOutputReg:
			if v := x.read(a.Src); v[0] == 0 && v[1] <= uint64(PortNone) {
				x.output(uint32(v[1]))
			}
		case ActResubmit:
			x.resubmit(a)
		case ActClone:
			x.clone(a)
		case ActController:
			if a.Controller.Pause {
				x.pause(a.Controller)
			} else {
				x.controller(a.Controller)
			}
		case ActGroup:
			x.group(uint32(a.Value[1]))
		case ActMeter:
			x.meter(uint32(a.Value[1]))
		case ActCT:
			x.ct(a.CT)
		case ActCTClear:
			x.ctClear()
		case ActFinTimeout:
			x.finTimeout(a)
		case ActLearn:
			x.learnFlow(a.Learn)
		case ActExit:
			x.exited = true
		case ActMultipath:
			x.multipath(a)
		case ActBundle:
			x.bundle(a)
		case ActPush:
			x.push(a.Src)
		case ActPop:
			x.pop(a.Dst)
		case ActWriteActions:
			x.writeActions(a.Sub)
		case ActClearActions:
			x.actionSet = nil
		default:
			x.change(a)
		}
		if x.paused != nil {
			x.leaveList(actions[i+1:])
			return 0, false
		}
	}
	return 0, false
}

// clone executes actions and the resulting action set, and then undoes all their
// changes. As in Open vSwitch, an exit among them also ends the list around them.
func (x *xlate) clone(a *Action) {
	flow, keep, tags, decs, set, stack, queue := x.flow, x.keep, x.tags, x.decs, slices.Clone(x.actionSet), slices.Clone(x.stack), x.queue
	x.undone++
	x.list(a.Sub)
	x.endLists()
	x.undone--
	x.flow, x.keep, x.tags, x.decs, x.actionSet, x.stack, x.queue = flow, keep, tags, decs, set, stack, queue
	x.dirty = true
}

// change executes an action that changes the frame's fields.
func (x *xlate) change(a *Action) {
	switch a.Kind {
	case ActSetField, ActModField:
		if a.TLV != nil {
			x.setTLV(a.Dst.Field, a.TLV)
			return
		}
		x.set(a.Dst, a.Value, a.Mask)
	case ActDeleteField:
		x.deleteTLV(a.Dst.Field)
	case ActLoad:
		x.set(a.Dst, a.Value, a.Dst.ones())
	case ActMove:
		if x.hasField(a.Src.Field) && x.hasField(a.Dst.Field) {
			x.move(a.Src, a.Dst)
		}
	case ActWriteMetadata:
		x.set(wholeField(FMetadata), a.Value, a.Mask)
	case ActSetTunnel:
		x.set(wholeField(FTunID), a.Value, ones(64))
	case ActPushVLAN:
		x.pushTag(uint16(a.Value[1]), vlanCFI)
	case ActPopVLAN:
		if x.tagged() {
			x.tags.pop()
			x.syncTags()
		}
	case ActPushMPLS:
		x.pushMPLS(uint16(a.Value[1]))
	case ActPopMPLS:
		x.popMPLS(uint16(a.Value[1]))
	case ActPushPBB:
		x.pushPBB()
	case ActPopPBB:
		x.popPBB()
	case ActModVLANVID:
		x.modTag(uint16(a.Value[1]), vlanVID)
	case ActModVLANPCP:
		x.modTag(uint16(a.Value[1])<<13, vlanPCP)
	}
}

// hasField reports whether the frame has the field, according to the field's
// prerequisites.
func (x *xlate) hasField(id FieldID) bool { return fields[id].prerequisite.met(x) }

// set writes value v to a field, only the bits of the mask, and only if the frame has
// the field. FTCPSrc and
// FTCPDst also stand for the ports of UDP and SCTP, for mod_tp_src and mod_tp_dst.
func (x *xlate) set(dst Subfield, v, mask Value128) {
	if dst.Field.isTLV() {
		x.putTLV(dst, v, mask)
		return
	}
	switch dst.Field {
	case FVLANTCI:
		x.setTCI(uint16(v[1])<<dst.Offset, uint16(mask[1])<<dst.Offset)
		return
	case FVLANVID, FDLVLAN:
		if x.tagged() {
			x.modTag(uint16(v[1])<<dst.Offset, uint16(mask[1])<<dst.Offset)
		}
		return
	case FVLANPCP, FDLVLANPCP:
		if x.tagged() {
			x.modTag(uint16(v[1])<<(13+dst.Offset), uint16(mask[1])<<(13+dst.Offset))
		}
		return
	case FTCPSrc, FTCPDst:
		if !needPorts.met(x) {
			return
		}
	default:
		if !x.hasField(dst.Field) {
			return
		}
	}
	if dst.Field == FIPTTL {
		if dst.Bits < 8 {
			x.visitWord(wIP, ttlBits)
		}
		x.keep[wIP] &^= ttlBits
	}
	dst.put(&x.flow, v, mask)
	word, hi, lo := dst.words(mask)
	x.keep[word] &^= hi
	if lo != 0 {
		x.keep[word+1] &^= lo
	}
	x.dirty = true
}

// decTTL decrements the TTL. It returns false if the TTL has expired, which ends the
// action list. If the highest set bit of the TTL proves that the TTL is high enough,
// the megaflow matches only this bit.
func (x *xlate) decTTL() bool {
	if !needIP.met(x) {
		return true
	}
	ttl := x.flow[wIP] >> ttlAt & 0xff
	if x.keep[wIP]&ttlBits != 0 {
		was := ttl + uint64(x.decs)
		top := uint64(1) << bits.Len64(was) >> 1 // 0 for 0
		switch {
		case ttl > 1 && top > uint64(x.decs)+1:
			x.wc[wIP] |= top << ttlAt
		case ttl <= 1 && x.decs == 0:
			x.wc[wIP] |= 0xfe << ttlAt
		default:
			x.wc[wIP] |= ttlBits
		}
	}
	if ttl <= 1 {
		x.ttlExpired()
		return false
	}
	if x.keep[wIP]&ttlBits != 0 {
		x.decs++
	}
	x.flow[wIP] -= 1 << ttlAt
	x.dirty = true
	return true
}
