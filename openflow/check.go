// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"weft/flowtable"
	"weft/packet"
)

// actionChecker applies the rules for valid actions (ovs-actions(7)). The parser of text and the decoder of
// messages use it. It goes through one list of actions in order, and keeps the values of the fields that are
// known from the flow's match and from earlier actions. Its errors are *ParseError. The argument "word" of
// its methods is the action's text, which the errors name.
type actionChecker struct {
	table    uint8  // table of the flow; TableAll: unknown
	checked  bool   // refuses actions on fields that the match does not guarantee; false: the match is unknown
	match    Match  // field values known from the match and earlier actions
	nested   bool   // inside clone, write_actions, exec or a bucket, which cannot have instructions
	inSet    bool   // inside write_actions
	inExec   bool   // inside ct(exec())
	toTables bool   // allows an output to TABLE, as in packet-out
	last     string // name of the last instruction so far
	rank     int    // rank of the last instruction: orderMeter to orderGoto
	// OpenFlow 1.0 allows actions such as mod_nw_src on frames that lack the field. loose is the text of the
	// first such action whose field the match does not guarantee, and looseNeeds is the prerequisite of this
	// field. strict is true if the list has an action that only later versions of OpenFlow have. The flow is
	// refused if it has both kinds.
	loose      string
	looseNeeds Prereq
	strict     bool
	bare       bool // encap and decap have left a packet without an Ethernet header
	innerTags  int  // VLAN tags that the frame is known to have behind the outermost one
}

// lacks reports whether some frames of the flow may not meet the prerequisite when the next action of the
// list is executed.
func (c *actionChecker) lacks(prereq Prereq) bool { return c.checked && !prereq.Met(&c.match) }

// lenient checks an action such as mod_nw_src, which OpenFlow 1.0 allows on frames that lack the field and
// which does not change them. If the flow's match does not guarantee the field, lenient records the action
// in c.loose.
func (c *actionChecker) lenient(word string, prerequisite Prereq) {
	if c.inSet {
		return // the action set is executed later, so the match of its frames is unknown
	}
	if c.loose == "" && c.lacks(prerequisite) {
		c.loose, c.looseNeeds = word, prerequisite
	}
}

// Ranks of OpenFlow 1.1's instructions, in their required order. Only instructions of
// rank orderActions may occur several times.
const (
	orderMeter = iota
	orderActions
	orderClear
	orderWrite
	orderMetadata
	orderGoto
)

// order checks whether the action may follow the earlier actions of its list. Instructions must be in the
// order of OpenFlow 1.1, and nested lists and action sets cannot have all actions. "name" is the action's
// name without its arguments.
func (c *actionChecker) order(word, name string, kind ActionKind) error {
	rank := orderActions
	switch kind {
	case ActMeter:
		rank = orderMeter
	case ActClearActions:
		rank = orderClear
	case ActWriteActions:
		rank = orderWrite
	case ActWriteMetadata:
		rank = orderMetadata
	case ActGotoTable:
		rank = orderGoto
	}
	switch {
	case (rank != orderActions || kind == ActConjunction) && c.nested:
		return withinAnother(word, name)
	case c.inSet && kind.rank() == rankNone && kind != ActController:
		return wrong(word, "an action that an action set can have")
	case rank < c.rank && rank == orderMeter, rank == orderMeter && c.last != "":
		return wrong(word, "meter once, before all else")
	case rank < c.rank && c.last == "goto_table", rank < c.rank && rank == orderActions:
		return wrong(word, "%s at the end of the actions", c.last)
	case rank < c.rank:
		return wrong(word, "%s before %s", name, c.last)
	case rank == c.rank && rank > orderActions:
		return wrong(word, "%s once", name)
	}
	c.rank, c.last = rank, name
	return nil
}

func withinAnother(word, name string) error {
	return wrong(word, "no %s within another action", name)
}

// outputTo returns the action that outputs to a port, or an error if no frame can be sent to the port.
func (c *actionChecker) outputTo(number uint32, word string) (Action, error) {
	switch {
	case number == PortController:
		return Action{Kind: ActController, Controller: &Controller{MaxLen: WholeFrame}}, nil
	case number == PortTable && !c.toTables:
		return Action{}, wrong(word, "an output that weft supports")
	case number == PortNone || number >= PortMax && number < PortInPort:
		return Action{}, wrong(word, "a port that frames can be sent to")
	}
	return Action{Kind: ActOutput, Port: number}, nil
}

// vlanAliases maps dl_vlan and dl_vlan_pcp to the fields that an action must name in their place. Only load
// and set_field accept dl_vlan.
var vlanAliases = map[FieldID]string{FDLVLAN: "vlan_vid or vlan_tci[0..11]", FDLVLANPCP: "vlan_pcp or vlan_tci[13..15]"}

// readable returns an error if an action cannot read the field in all frames that match the flow.
func (c *actionChecker) readable(word string, s Subfield) error {
	f := &fields[s.Field]
	if len(f.oxm) == 0 {
		if other, ok := vlanAliases[s.Field]; ok {
			return wrong(word, "%s in place of its alias %s", other, f.name)
		}
		return wrong(word, "a field with an NXM or OXM name: %s has none", f.name)
	}
	needs := f.prerequisite
	if s.Field == FVLANVID {
		return nil // an untagged frame has vlan_vid 0
	}
	if c.lacks(needs) {
		return wrong(word, "a flow that matches %s, as %s needs", prereqTexts[needs], fields[s.Field].name)
	}
	return nil
}

// writable returns an error unless an action may write the field.
func (c *actionChecker) writable(word string, s Subfield) error {
	f := &fields[s.Field]
	if f.readOnly {
		return wrong(word, "a field that can be written: %s is read-only", f.name)
	}
	if (s.Field == FCTMark || s.Field == FCTLabel) && !c.inExec {
		return wrong(word, "a field that can be written here: %s is written within ct(commit,exec())", f.name)
	}
	return c.readable(word, s)
}

// settable returns an error unless load and set_field may write the field.
func (c *actionChecker) settable(word string, s Subfield) error {
	switch {
	case s.Field == FDLVLAN:
		return nil
	case s.Field == FVLANVID && c.lacks(NeedVLAN):
		return wrong(word, "a flow that matches %s, as vlan_vid needs", prereqTexts[NeedVLAN])
	}
	return c.writable(word, s)
}

// assume records that, after the present action, the bits of "mask" in the sub-field dst have the value v.
func (c *actionChecker) assume(dst Subfield, v, mask Value128) {
	if dst.Field.IsTLV() {
		return // no prerequisite depends on a field tun_metadata
	}
	dst.Put(&c.match.Value, v, mask)
	dst.Put(&c.match.Mask, mask, mask)
}

func (c *actionChecker) assumeTag() {
	c.assume(WholeField(FVLANTCI), Value64(flowtable.VLANPresent), Value64(flowtable.VLANPresent))
}

// assumeType records that the frame has this EtherType after the action. It forgets the known IP protocol,
// TOS, TTL and fragment type, because another header now follows.
func (c *actionChecker) assumeType(etherType uint64) {
	c.assume(WholeField(FEthType), Value64(etherType), Ones(16))
	c.match.Mask[flowtable.WIP] &= flowtable.VLANTCI << flowtable.InnerTCIShift
	c.match.Value[flowtable.WIP] &= flowtable.VLANTCI << flowtable.InnerTCIShift
}

// forgetCT removes ct_state, ct_zone, ct_mark and ct_nw_proto from the known values, because a ct action may
// set them.
func (c *actionChecker) forgetCT() {
	c.match.Mask[flowtable.WCT], c.match.Value[flowtable.WCT] = 0, 0
}

func (c *actionChecker) pushVLAN(etherType uint64) Action {
	if NeedVLAN.Met(&c.match) {
		c.innerTags++
	}
	c.assumeTag()
	return Action{Kind: ActPushVLAN, Value: Value64(etherType)}
}

func (c *actionChecker) popVLAN(word string) Action {
	c.lenient(word, NeedVLAN)
	if c.innerTags > 0 {
		c.innerTags--
		return Action{Kind: ActPopVLAN}
	}
	c.assume(WholeField(FVLANTCI), Value128{}, Value64(flowtable.VLANTCI))
	return Action{Kind: ActPopVLAN}
}

func (c *actionChecker) pushMPLS(word string, etherType uint64) (Action, error) {
	if !packet.IsMPLS(uint16(etherType)) {
		return Action{}, wrong(word, "push_mpls:0x8847 or push_mpls:0x8848")
	}
	c.assumeType(etherType)
	return Action{Kind: ActPushMPLS, Value: Value64(etherType)}, nil
}

// popMPLS returns the action pop_mpls. etherType is the EtherType of the header behind the label stack entry.
func (c *actionChecker) popMPLS(word string, etherType uint64) Action {
	c.lenient(word, NeedMPLS)
	c.assumeType(etherType)
	return Action{Kind: ActPopMPLS, Value: Value64(etherType)}
}

func (c *actionChecker) decMPLSTTL(word string) Action {
	c.lenient(word, NeedMPLS)
	return Action{Kind: ActDecMPLSTTL}
}

func (c *actionChecker) pushPBB(word string, etherType uint64) (Action, error) {
	if etherType != packet.EtherTypePBB {
		return Action{}, wrong(word, "push_pbb:0x88e7")
	}
	c.strict = true
	c.assumeType(packet.EtherTypePBB)
	return Action{Kind: ActPushPBB}, nil
}

func (c *actionChecker) popPBB(word string) Action {
	c.lenient(word, NeedPBB)
	c.assumeType(EtherTypeUnrevealed)
	return Action{Kind: ActPopPBB}
}

func (c *actionChecker) decNSHTTL(word string) (Action, error) {
	c.strict = true
	if !c.inSet && c.lacks(NeedNSH) {
		return Action{}, wrong(word, "a flow that matches %s, as dec_nsh_ttl needs", prereqTexts[NeedNSH])
	}
	return Action{Kind: ActDecNSHTTL}, nil
}

// encap returns the action encap. mdType is the MD type of an NSH; 0: the text or the message gives none.
func (c *actionChecker) encap(packetType uint32, mdType uint64) Action {
	c.strict = true
	if c.bare = packetType != PacketEthernet; c.bare {
		c.assumeType(uint64(uint16(packetType)))
	}
	return Action{Kind: ActEncap, Value: Value128{mdType, uint64(packetType)}}
}

// decap returns the action decap. The EtherType stays known if the Ethernet header is removed. It becomes
// unknown if another header is removed.
func (c *actionChecker) decap(next uint32) Action {
	c.strict = true
	if c.bare {
		c.assumeType(0xffff)
	}
	c.bare = true
	return Action{Kind: ActDecap, Value: Value64(uint64(next))}
}

// learnChecker checks the matches and actions within the argument of one learn action.
type learnChecker struct {
	outer *actionChecker // of the list that contains the learn action
	match Match          // the part of the learned flow's match that is the same for all frames
}

// inner returns the checker for the actions of the learned flow. The prerequisites of these actions must
// follow from those parts of the learned flow's match that are constant.
func (l *learnChecker) inner() *actionChecker {
	return &actionChecker{checked: true, match: l.match}
}
