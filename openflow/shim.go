// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"slices"

	"weft/flowtable"
	"weft/packet"
)

// This file has the actions on MPLS and PBB headers (ovs-actions(7), "MPLS"; OpenFlow
// 1.3, 5.12). A key has one shim: the outermost label stack entry or the I-TAG. A push
// hides all headers behind the new one. A pop reveals headers that only a second
// look-up in the datapath can show. If the actions after a pop need these headers, they
// continue in a second translation (recirc.go).

// hideInner makes the frame one of the EtherType and shim, without fields of network and
// transport headers, for both frame states.
func (x *xlate) hideInner(etherType uint16, shim uint32) {
	known := func(word int, v, mask uint64) {
		x.flow[word] = x.flow[word]&^mask | v&mask
		x.base[word] = x.base[word]&^mask | v&mask
		x.keep[word] &^= mask
		x.baseKeep[word] &^= mask
	}
	known(flowtable.WEthDst, uint64(etherType), 0xffff)
	known(flowtable.WIP, 0, ^uint64(flowtable.VLANTCI<<flowtable.InnerTCIShift))
	for word := flowtable.WL4; word < flowtable.WTunID; word++ {
		known(word, 0, ^uint64(0))
	}
	for word := flowtable.WARPSha; word < flowtable.WCT; word++ {
		known(word, 0, ^uint64(0))
	}
	known(flowtable.WIPv4, uint64(shim)<<flowtable.ShimShift, ^uint64(0))
	x.decs, x.baseDecs = 0, 0
}

// readShim returns the label stack entry or the I-TAG.
func (x *xlate) readShim() uint32 {
	x.VisitWord(flowtable.WIPv4, 0xffffffff<<flowtable.ShimShift)
	return uint32(x.flow[flowtable.WIPv4] >> flowtable.ShimShift)
}

// Label stack entries.
const (
	mplsBOS        = 1 << 8
	mplsTC         = 9 // lowest bit of the traffic class
	mplsLabel      = 12
	mplsIPv6Null   = 2 // IPv6 explicit NULL label (RFC 3032, 2.1)
	mplsDefaultTTL = 64
	pbbISID        = 0xffffff
	pbbPCP         = 29
	mplsTCBits     = 7
)

// firstEntry returns the label stack entry of a frame that had none: with the label,
// traffic class and TTL that Open vSwitch chooses.
func (x *xlate) firstEntry() uint32 {
	label, class, ttl := uint32(0), uint32(0), uint32(0)
	if needIPv6.met(x) {
		label = mplsIPv6Null
	}
	if needIP.met(x) {
		class = uint32(x.read(wholeField(FIPDSCP))[1]) & mplsTCBits
		ttl = uint32(x.read(wholeField(FIPTTL))[1])
	}
	if ttl == 0 {
		ttl = mplsDefaultTTL
	}
	return label<<mplsLabel | class<<mplsTC | mplsBOS | ttl
}

// pushMPLS inserts a label stack entry: a copy of the outermost one, or a first one.
func (x *xlate) pushMPLS(etherType uint16) {
	var entry uint32
	if needMPLS.met(x) {
		entry = x.readShim() &^ mplsBOS
	} else {
		entry = x.firstEntry()
	}
	x.commit()
	x.emit(flowtable.Action{Op: flowtable.OpPushMPLS, U16: etherType, U32: entry})
	x.hideInner(etherType, entry)
}

// popMPLS removes the outermost label stack entry, if any.
func (x *xlate) popMPLS(etherType uint16) {
	if !needMPLS.met(x) {
		return
	}
	x.commit()
	x.emit(flowtable.Action{Op: flowtable.OpPopMPLS, U16: etherType})
	x.hideInner(etherType, 0)
	x.opaque = true
}

// pushPBB prepends an Ethernet header with an I-TAG (OpenFlow 1.3, 5.12.1). If the
// frame already has an I-TAG, the new one copies its I-SID. If the frame has a VLAN
// tag, the new I-TAG copies its priority.
func (x *xlate) pushPBB() {
	var tag uint32
	if needPBB.met(x) {
		tag = x.readShim() & pbbISID
	}
	if x.tagged() {
		tag |= uint32(x.read(wholeField(FVLANPCP))[1]) << pbbPCP
	}
	x.commit()
	x.emit(flowtable.Action{Op: flowtable.OpPushPBB, U32: tag})
	x.hideInner(packet.EtherTypePBB, tag)
	x.hideTags()
}

// popPBB removes the outer Ethernet header and the I-TAG, if any.
func (x *xlate) popPBB() {
	if !needPBB.met(x) {
		return
	}
	x.commit()
	x.emit(flowtable.Action{Op: flowtable.OpPopPBB})
	x.hideInner(etherTypeUnrevealed, 0)
	x.hideTags()
	x.opaque = true
}

// hideTags makes the frame one without VLAN tags, for both frame states.
func (x *xlate) hideTags() {
	x.tags = tagStack{}
	x.syncTags()
	x.baseTags = x.tags
	x.base[flowtable.WEthSrc], x.base[flowtable.WIP] = x.flow[flowtable.WEthSrc], x.flow[flowtable.WIP]
}

// decMPLSTTL decrements the TTL of the label stack entry. It reports false if the TTL has
// expired, which ends the list.
func (x *xlate) decMPLSTTL() bool {
	if !needMPLS.met(x) {
		return true
	}
	ttl := wholeField(FMPLSTTL)
	v := x.read(ttl)
	if v[1] <= 1 {
		x.ttlExpired()
		return false
	}
	x.set(ttl, value64(v[1]-1), ttl.ones())
	return true
}

// commitShim emits the change of the label stack entry or the I-TAG.
func (x *xlate) commitShim() {
	const word, mask = flowtable.WIPv4, 0xffffffff << flowtable.ShimShift
	if !x.differs(word, mask) || !needMPLS.met(x) && !needPBB.met(x) {
		return
	}
	shim := x.readShim()
	x.follow(word, mask)
	x.emit(flowtable.Action{Op: flowtable.OpSetShim, U32: shim})
}

// changesHeaders reports whether a kind of action adds or removes a header that hides
// others. Its effect cannot be undone at the end of a clone or a bucket.
func changesHeaders(k ActionKind) bool {
	switch k {
	case ActPushMPLS, ActPopMPLS, ActPushPBB, ActPopPBB, ActEncap, ActDecap:
		return true
	}
	return false
}

// needsHeaders reports whether an action depends on headers that a pop has revealed.
func needsHeaders(a *Action) bool {
	switch a.Kind {
	case ActOutput:
		return a.Port == PortNORMAL || a.Port == PortTable
	case ActController, ActNote, ActSample, ActExit, ActWriteActions, ActClearActions, ActWriteMetadata, ActOutputTrunc, ActEnqueue,
		ActSetQueue, ActPopQueue:
		return false
	}
	return true
}

// suspends reports whether the translation of a list must go on in the datapath before
// this action.
func (x *xlate) suspends(a *Action) bool {
	return x.opaque && needsHeaders(a) || x.undone > 0 && changesHeaders(a.Kind)
}

// suspendedNote returns a trace's remark on a list of actions that suspends has ended.
func (x *xlate) suspendedNote() string {
	if x.opaque {
		return revealedNote
	}
	return "continues in a second look-up, because the actions behind this clone, bucket or patch port need the unchanged frame"
}

// revealedNote is a trace's remark on a look-up that sees the headers behind a popped header.
// A hypothetical frame has no such headers: their fields are 0.
const revealedNote = "continues in a second look-up, which sees the headers that the pop has revealed; they are 0 in a trace"

// continueLater emits a second look-up whose translation executes the actions, and then the
// action set, unless they are a bucket's. The present list ends, and the frame is the
// present one for the list around it. note is a trace's remark on the second look-up.
func (x *xlate) continueLater(actions []Action, note string) {
	f := x.freeze(x.table)
	f.Actions = FormatActions(actions, WithTLVs(nil, x.p.TLVs()))
	if x.buckets > 0 {
		f.ActionSet = ""
	} else {
		x.actionSet = nil
	}
	x.commit()
	x.recirculate(&f)
	x.noteAgain(note)
	// The second translation cannot end the lists around this one, so an exit in actions ends
	// them now.
	x.exited = slices.ContainsFunc(actions, func(a Action) bool { return a.Kind == ActExit })
}

// continueWith executes the actions that continueLater has left.
func (x *xlate) continueWith(actions []Action, table uint8) {
	x.table = table
	next, jump := x.list(actions)
	if jump && x.countResubmit() {
		x.pipeline(next, true)
	}
}

// Parsing

func (p *actionParser) pushMPLS(t token) (Action, error) {
	v, ok := parseUint(t.value, 0xffff)
	if !ok || !packet.IsMPLS(uint16(v)) {
		return Action{}, wrong(t.text, "push_mpls:0x8847 or push_mpls:0x8848")
	}
	p.assumeType(v)
	return Action{Kind: ActPushMPLS, Value: value64(v)}, nil
}

func (p *actionParser) popMPLS(t token) (Action, error) {
	v, ok := parseUint(t.value, 0xffff)
	if !ok {
		return Action{}, wrong(t.text, "pop_mpls:ETHERTYPE, such as 0x0800")
	}
	p.lenient(t, needMPLS)
	p.assumeType(v)
	return Action{Kind: ActPopMPLS, Value: value64(v)}, nil
}

func (p *actionParser) decMPLSTTL(t token) (Action, error) {
	p.lenient(t, needMPLS)
	return Action{Kind: ActDecMPLSTTL}, nil
}

func (p *actionParser) pushPBB(t token) (Action, error) {
	if v, ok := parseUint(t.value, 0xffff); !ok || v != packet.EtherTypePBB {
		return Action{}, wrong(t.text, "push_pbb:0x88e7")
	}
	p.strict = true
	p.assumeType(packet.EtherTypePBB)
	return Action{Kind: ActPushPBB}, nil
}

func (p *actionParser) popPBB(t token) (Action, error) {
	p.lenient(t, needPBB)
	p.assumeType(etherTypeUnrevealed)
	return Action{Kind: ActPopPBB}, nil
}

// assumeType records that the frame has another EtherType after the action.
func (p *actionParser) assumeType(etherType uint64) {
	p.assume(wholeField(FEthType), value64(etherType), ones(16))
	p.match.Mask[flowtable.WIP] &= flowtable.VLANTCI << flowtable.InnerTCIShift
	p.match.Value[flowtable.WIP] &= flowtable.VLANTCI << flowtable.InnerTCIShift
}

func formatShim(a *Action) string {
	switch a.Kind {
	case ActPushMPLS:
		return fmt.Sprintf("push_mpls:0x%04x", a.Value[1])
	case ActPopMPLS:
		return fmt.Sprintf("pop_mpls:0x%04x", a.Value[1])
	case ActDecMPLSTTL:
		return "dec_mpls_ttl"
	case ActPushPBB:
		return fmt.Sprintf("push_pbb:0x%04x", packet.EtherTypePBB)
	case ActPopPBB:
		return "pop_pbb"
	}
	return ""
}

// On the wire

// appendShim appends an action of MPLS or PBB. OpenFlow 1.0 has none for PBB.
func (e *actionEncoder) appendShim(b []byte, a *Action) []byte {
	switch {
	case a.Kind == ActPushMPLS && e.v == Version10:
		return appendZeros(be.AppendUint16(appendNX(b, nxPushMPLS), uint16(a.Value[1])), 4)
	case a.Kind == ActPopMPLS && e.v == Version10:
		return appendZeros(be.AppendUint16(appendNX(b, nxPopMPLS), uint16(a.Value[1])), 4)
	case a.Kind == ActDecMPLSTTL && e.v == Version10:
		return appendZeros(appendNX(b, nxDecMPLSTTL), 6)
	case a.Kind == ActPushMPLS:
		return be.AppendUint16(appendHeader(b, wirePushMPLS), uint16(a.Value[1]))
	case a.Kind == ActPopMPLS:
		return be.AppendUint16(appendHeader(b, wirePopMPLS), uint16(a.Value[1]))
	case a.Kind == ActDecMPLSTTL:
		return appendHeader(b, wireDecMPLSTTL)
	case e.v == Version10:
		return b
	case a.Kind == ActPushPBB:
		return be.AppendUint16(appendHeader(b, wirePushPBB), packet.EtherTypePBB)
	}
	return appendHeader(b, wirePopPBB)
}

// decodeShim decodes an action of MPLS or PBB of OpenFlow 1.3 and later. ok is false if
// it is none. argument has the 4 bytes behind the action's length.
func (d *actionDecoder) decodeShim(kind uint16, argument []byte) (a Action, ok bool, err error) {
	p, etherType := &d.check, be.Uint16(argument)
	push := token{key: "push", value: fmt.Sprint(etherType), text: "push"}
	switch kind {
	case wireSetMPLSTTL:
		return d.setShim(FMPLSTTL, uint64(argument[0])), true, nil
	case wireDecMPLSTTL:
		a, err = p.decMPLSTTL(word("dec_mpls_ttl"))
	case wirePushMPLS:
		a, err = p.pushMPLS(push)
	case wirePopMPLS:
		a, err = p.popMPLS(token{key: "pop_mpls", value: push.value, text: "pop_mpls"})
	case wirePushPBB:
		a, err = p.pushPBB(push)
	case wirePopPBB:
		a, err = p.popPBB(word("pop_pbb"))
	default:
		return a, false, nil
	}
	if err != nil {
		err = coded(ErrActionBadArgument, err.Error())
	}
	return a, true, err
}

// setShim returns the action that sets a whole field of a label stack entry.
func (d *actionDecoder) setShim(id FieldID, v uint64) Action {
	d.check.lenient(word("set_"+fields[id].name), needMPLS)
	return Action{Kind: ActModField, Dst: wholeField(id), Value: value64(v), Mask: ones(uint(fields[id].bits))}
}

// niciraShim decodes an action of MPLS among Nicira's. The argument b begins behind the
// subtype.
func (d *actionDecoder) niciraShim(subtype uint16, b []byte) (Action, error) {
	switch subtype {
	case nxSetMPLSLabel:
		return d.setShim(FMPLSLabel, uint64(be.Uint32(b[2:])&(1<<20-1))), nil
	case nxSetMPLSTC:
		return d.setShim(FMPLSTC, uint64(b[0]&mplsClass)), nil
	case nxSetMPLSTTL:
		return d.setShim(FMPLSTTL, uint64(b[0])), nil
	}
	kind := map[uint16]uint16{nxPushMPLS: wirePushMPLS, nxPopMPLS: wirePopMPLS, nxDecMPLSTTL: wireDecMPLSTTL}[subtype]
	a, _, err := d.decodeShim(kind, b)
	return a, err
}

// mplsClass has the bits of a traffic class.
const mplsClass = 7

// etherTypeUnrevealed stands for the EtherType behind an I-TAG, until a second look-up shows it.
const etherTypeUnrevealed = 0
