// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"fmt"
	"sync"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/openflow/ofproto"
	"weft/packet"
)

// Limits of one translation, as in ovs-actions(7), "Error Handling". A translation that exceeds a limit,
// or flowtable.MaxActions, ends. Outputs of earlier actions remain. The frame is counted as
// packet.DropLoop unless stated otherwise.
const (
	// maxResubmits is the largest number of resubmit and goto_table actions. Executed groups, outputs to
	// the port TABLE, and patch ports that the frame crosses count, too.
	maxResubmits = 4096
	// maxDepth is the deepest nesting of groups, of outputs to the port TABLE, of crossed patch ports, and
	// of resubmits to the same or an earlier table.
	maxDepth = 64
	// maxSteps is the largest number of steps. A step is an executed action, a look-up, a bucket, a group
	// whose state decides whether a bucket is live, a mirror that selects the frame, or a port that a flood
	// examines. A frame that needs more steps is counted as packet.DropBudget. A pipeline that makes full
	// use of maxResubmits may have 32 steps for each.
	maxSteps = 32 * maxResubmits
	// maxMissed is the largest number of look-ups without a matching flow that a translation records for
	// the statistics of the tables. Further ones are not counted.
	maxMissed = 64
)

// Translate runs key through the tables of p, starting with table 0 of the bridge to which its port
// belongs. Frames from unknown ports go through the tables of p itself.
func Translate(p *ofproto.Tables, key *flowtable.Key, env Env) (t Translation) {
	trace(p, &t, key, env, nil)
	return t
}

// TranslateTo is like Translate, but writes the result to t. It reuses the arrays of t.Actions,
// t.Rules, t.Missed and t.Addresses.
func TranslateTo(p *ofproto.Tables, t *Translation, key *flowtable.Key, env Env) {
	trace(p, t, key, env, nil)
}

// Trace is like Translate, but also calls hook for each step. hook may be nil.
func Trace(p *ofproto.Tables, key *flowtable.Key, env Env, hook func(TraceStep)) (t Translation) {
	trace(p, &t, key, env, hook)
	return t
}

func trace(p *ofproto.Tables, t *Translation, key *flowtable.Key, env Env, hook func(TraceStep)) {
	x := xlates.Get().(*xlate)
	x.begin(p, key, env, hook)
	x.arrive()
	switch table, actions, ok := x.resume(); {
	case !ok:
		x.noteDrop(packet.DropTableMiss)
	case x.check != checkNone:
		x.resumeCheck()
	case actions != nil:
		x.limitTags()
		x.continueWith(actions, table)
		x.endLists()
	case x.admit():
		x.limitTags()
		if x.flow.Key().Recirc() == 0 {
			x.sampleArrival()
			x.mirrorArrival()
		}
		x.pipeline(table, true)
		x.endLists()
	}
	x.finish(t)
}

// finish writes the translation's result to t, and returns x to the pool xlates.
func (x *xlate) finish(t *Translation) {
	x.result(t)
	x.p, x.env, x.hook, x.rule = nil, nil, nil, nil
	clear(x.rules)
	xlates.Put(x)
}

var xlates = sync.Pool{New: func() any { return new(xlate) }}

// xlate is the state of one translation. flow is the frame after the executed OpenFlow actions. base is
// the frame after the emitted datapath actions. Before an output, commit emits the actions that change
// base into flow (commit.go).
//
// wc is the mask of the megaflow. It must have all bits of the arriving frame on which the translation
// depends. The mask keep says which bits of flow still come from the arriving frame. All code reads flow
// through VisitWord and read. These add the bits that they read to wc, if the bits are in keep. Other
// bits were set by actions, or follow from bits that were already read.
type xlate struct {
	p    *ofproto.Tables
	env  Env
	hook func(TraceStep)
	// cameIn is the port on which the frame arrived. If the translation stores a state (Frozen), the quota
	// of this port limits this. The megaflow does not depend on cameIn otherwise. It matches the port only
	// if the quota refuses the state, if the translation reads inPort, or if the switch has several
	// bridges.
	cameIn uint32
	patch  uint32 // patch port through which the frame came to the bridge; 0: none

	flow, keep     openflow.Flow
	base, baseKeep openflow.Flow
	wc             openflow.Flow
	tags, baseTags tagStack
	// decs counts the dec_ttl actions since the TTL was last set. baseDecs is that
	// count for base.
	decs, baseDecs int
	dirty          bool   // flow may differ from base
	opaque         bool   // a pop has revealed headers that flow does not have
	bare           bool   // the packet has no Ethernet header for flows, see encap.go
	undone         int    // number of clones, buckets and patch ports around the present list; their end undoes its changes
	buckets        int    // number of buckets around the present list
	limit          uint32 // largest length in bytes of the output in execution; 0: any
	queue          uint32 // queue of outputs, see queue.go

	actions      []flowtable.Action
	rules        []*ofproto.Rule
	unmatched    []ofproto.BridgeTable
	groups       []ofproto.GroupHit
	actionSet    openflow.ActionSet
	stack        []stacked
	resubmits    int
	steps        int
	depth        int
	rule         *ofproto.Rule     // rule in execution; nil: the action set
	table        uint8             // table of rule
	mirrored     uint32            // bit i: the output of mirror i has a copy of the frame
	copying      bool              // a mirror sends a copy
	sampled      bool              // the actions have an OpSample
	halted       bool              // a limit was reached
	paused       *pausing          // set after controller(pause), which ends the translation
	resumed      *continuationList // list of a continuation in execution, or nil
	continuation string            // of the controller action in execution
	exited       bool              // exit ends all lists, up to the bucket or bridge in execution
	sent         bool
	tracks       bool              // the datapath may have tracked the frame
	drop         packet.DropReason // first reason noted
	learns       []fdb.Learn
	patches      []Crossing
	toAsk        fdb.Question
	mustAsk      bool
	refused      bool   // Translation.Refused
	request      bool   // Translation.Request
	check        check  // Frozen.Check of the state with which the translation began
	checkedTo    uint32 // Frozen.To of that state
	learned      []openflow.FlowMod
	finished     []ofproto.Finished
	tables       TableSet
	addresses    []fdb.Ref // at most maxAddressRefs
	usedPorts    bool
	portless     openflow.Flow // the flow of a fragment without its ports, for a look-up
	lookingUp    bool          // true while a look-up, and not an action, reads the flow
	// sentOptions and sentMeta are the Geneve options and the other tunnel fields that the emitted
	// actions have set for later tunnel outputs (setTunnelFields).
	sentOptions string
	sentMeta    uint64
}

func (x *xlate) begin(p *ofproto.Tables, key *flowtable.Key, env Env, hook func(TraceStep)) {
	actions, rules, missed, addresses := x.actions[:0], x.rules[:0], x.unmatched[:0], x.addresses[:0]
	*x = xlate{}
	x.p, x.env, x.hook, x.actions, x.rules, x.unmatched, x.addresses = p, env, hook, actions, rules, missed, addresses
	copy(x.flow[:], key[:])
	x.cameIn = key.InPort()
	for i := range key {
		x.keep[i] = ^uint64(0)
	}
	for w := openflow.WTLVs; w < openflow.FlowWords; w++ {
		x.keep[w] = ^uint64(0)
	}
	x.keep[flowtable.WEthSrc] &^= flowtable.VLANTCI // the tag stack tracks these bits
	x.keep[flowtable.WIP] &^= flowtable.VLANTCI << flowtable.InnerTCIShift
	x.tags = frameTags(key)
	x.base, x.baseKeep, x.baseTags = x.flow, x.keep, x.tags
}

// result writes the translation's result to t: the megaflow's mask and actions, and all on which they
// depend. It reuses the memory of the slices in t, so that a translation need not allocate them.
func (x *xlate) result(t *Translation) {
	actions, rules, missed, addresses := t.Actions[:0], t.Rules[:0], t.Missed[:0], t.Addresses[:0]
	*t = Translation{}
	t.Learns, t.Patches, t.Question, t.MustAsk, t.Learned, t.Finished = x.learns, x.patches, x.toAsk, x.mustAsk, x.learned, x.finished
	t.Groups, t.Tables, t.UsedPorts, t.Refused = x.groups, x.tables, x.usedPorts, x.refused
	t.Request = x.request
	copy(t.Mask[:], x.wc[:flowtable.KeyWords])
	for w := openflow.WTLVs; w < openflow.FlowWords; w++ {
		if x.wc[w] != 0 {
			t.Mask[flowtable.WTunOpts] = ^uint64(0)
		}
	}
	switch {
	case x.halted:
		x.trim()
		t.Drop = x.drop
	case !x.sent:
		if x.mirrored != 0 || x.sampled {
			x.trim()
		} else {
			x.actions = x.actions[:0] // changes to a frame that is not sent
		}
		t.Drop = x.drop
		if t.Drop == packet.DropNone {
			t.Drop = packet.DropFlow
		}
	}
	if t.Drop != packet.DropNone {
		x.actions = append(x.actions, flowtable.Action{Op: flowtable.OpDrop, U32: uint32(t.Drop)})
	}
	if x.sampled {
		x.countOutputs()
	}
	t.Actions = append(actions, x.actions...)
	t.Addresses = append(addresses, x.addresses...)
	t.Rules = append(rules, x.rules...)
	t.Missed = append(missed, x.unmatched...)
}

// trim removes the datapath actions after the last action that sends the frame or samples it, because
// they have no effect.
func (x *xlate) trim() {
	n := len(x.actions)
	for n > 0 && !sends(x.actions[n-1].Op) {
		n--
	}
	x.actions = x.actions[:n]
}

func sends(op flowtable.Op) bool {
	return op == flowtable.OpOutput || op == flowtable.OpTunnel || op == flowtable.OpAnswer || op == flowtable.OpRecirc || op == flowtable.OpOutputTruncated || op == flowtable.OpSample
}

// noteDrop records the drop reason of the translation. Only the first reason counts.
func (x *xlate) noteDrop(reason packet.DropReason) {
	if x.drop == packet.DropNone {
		x.drop = reason
	}
}

// halt ends the translation, because it has reached a limit. reason is counted for the frame.
func (x *xlate) halt(reason packet.DropReason) {
	if !x.halted {
		x.halted, x.drop = true, reason
		x.note("the translation ends: " + reason.String())
	}
}

func (x *xlate) note(text string) {
	if x.hook != nil {
		x.hook(TraceStep{Bridge: x.p.Bridge(), Depth: x.depth, Table: x.table, Flow: x.flow, Note: text})
	}
}

// pipeline searches a table, executes the matching rule, and follows goto_table. If isFirst is set, a
// frame without a matching rule is a table miss. But in table 0, if the central controller
// (weft-central) has declared the frame's input port, the frame continues in CentralTable. If isFirst is
// not set, the look-up is a resubmit.
func (x *xlate) pipeline(table uint8, isFirst bool) {
	for {
		rule, conj := x.lookup(table)
		if x.hook != nil {
			x.hook(TraceStep{Bridge: x.p.Bridge(), Depth: x.depth, Table: table, Lookup: true, Rule: rule, Flow: x.flow, Note: noteOf(conj)})
		}
		if x.halted {
			return
		}
		if rule == nil {
			if isFirst && table == 0 && x.continues() {
				table = ofproto.CentralTable
				continue
			}
			switch {
			case isFirst && x.p.SendsMisses():
				x.missed(table)
			case isFirst:
				x.noteDrop(packet.DropTableMiss)
			}
			return
		}
		next, jump := x.execute(rule, table)
		if !jump {
			return
		}
		table, isFirst = next, true
	}
}

func (x *xlate) lookup(table uint8) (r *ofproto.Rule, conj uint32) {
	x.tables.Add(table)
	if !x.step() {
		return nil, 0
	}
	if x.bare {
		x.noteDrop(packet.DropPacketType)
		x.note("no flow matches a packet without an Ethernet header")
		return nil, 0
	}
	flow, dropped := x.fragment()
	if dropped {
		x.noteDrop(packet.DropBadFragment)
		x.note("the bridge drops fragments (set-frags drop)")
		return nil, 0
	}
	x.lookingUp = true
	r, conj = x.p.Lookup(table, flow, x)
	x.lookingUp = false
	if r == nil && len(x.unmatched) < maxMissed {
		x.unmatched = append(x.unmatched, ofproto.BridgeTable{Bridge: x.p.Bridge(), Table: table})
	}
	return r, conj
}

// fragment returns the flow that a look-up must use: x.flow or, for a fragment, a copy without ports if
// the bridge is set to hide the ports of fragments. dropped is true if the frame is a fragment and the
// bridge drops fragments. If the look-up reads ports, VisitWord makes the megaflow match whether the
// frame is a fragment.
func (x *xlate) fragment() (flow *openflow.Flow, dropped bool) {
	mode, is := x.p.Fragments(), x.flow[flowtable.WIP]>>flowtable.FragShift&flowtable.FragAny != 0
	switch {
	case mode == ofproto.FragmentsDrop:
		x.VisitWord(flowtable.WIP, fragmentBits)
		return &x.flow, is
	case mode == ofproto.FragmentsNormal && is:
		x.portless = x.flow
		x.portless[flowtable.WL4] &^= ports
		return &x.portless, false
	}
	return &x.flow, false
}

const (
	// ports is the part of the word WL4 that has tp_src and tp_dst.
	ports = 0xffffffff << flowtable.TPDstShift
	// fragmentBits is the part of the word WIP that has ip_frag.
	fragmentBits = (flowtable.FragAny | flowtable.FragLater) << flowtable.FragShift
)

// noteOf returns the text that a trace shows with a look-up: the conjunction through which the look-up
// found a flow. The text is "" if conj is 0, which means that no conjunction was involved.
func noteOf(conj uint32) string {
	if conj == 0 {
		return ""
	}
	return fmt.Sprintf("all parts of conjunction %d match", conj)
}

// execute runs the actions of a rule. If the actions end with goto_table, jump is true
// and nextTable is the number of the named table.
func (x *xlate) execute(rule *ofproto.Rule, table uint8) (nextTable uint8, jump bool) {
	x.rules = append(x.rules, rule)
	outer, outerTable := x.rule, x.table
	x.rule, x.table = rule, table
	nextTable, jump = x.list(rule.Actions)
	x.rule, x.table = outer, outerTable
	if jump && !x.countResubmit() {
		return 0, false
	}
	return nextTable, jump
}

func (x *xlate) countResubmit() bool {
	if x.resubmits == maxResubmits {
		x.halt(packet.DropLoop)
		return false
	}
	x.resubmits++
	return true
}

// step counts a step of the translation. It returns false if there were too many, which
// ends the translation.
func (x *xlate) step() bool {
	if x.steps == maxSteps {
		x.halt(packet.DropBudget)
		return false
	}
	x.steps++
	return true
}

// descend enters one more level of nesting. The caller leaves this level with
// x.depth--. descend returns false if a limit ends the translation.
func (x *xlate) descend() bool {
	if x.depth == maxDepth {
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
func (x *xlate) resubmit(a *openflow.Action) {
	table := a.Table
	if table == openflow.TableAll {
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
	if a.Port == openflow.PortInPort && !a.Tuple {
		x.pipeline(table, false)
		return
	}
	rule := x.lookupAs(table, a)
	if x.hook != nil {
		note := "looked up with another in_port"
		if a.Tuple {
			note = "looked up with the original tuple of the connection"
		}
		x.hook(TraceStep{Bridge: x.p.Bridge(), Depth: x.depth, Table: table, Lookup: true, Rule: rule, Flow: x.flow, Note: note})
	}
	if rule == nil {
		return
	}
	if next, jump := x.execute(rule, table); jump {
		x.pipeline(next, true)
	}
}
