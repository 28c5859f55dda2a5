// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"slices"

	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// This file has the actions on MPLS and PBB headers (ovs-actions(7), "MPLS"; OpenFlow 1.3, 5.12). A key
// has only the outermost label stack entry or I-TAG, called the shim. A push hides all headers that
// follow the new one. A pop reveals headers that only a second look-up in the datapath can show. If the
// actions after a pop need these headers, they continue in a second translation (recirc.go).

// hideInner records that a header with this EtherType and shim (label stack entry or I-TAG) now hides
// the network and transport headers: it sets their fields to 0. It changes x.flow and x.base, because
// the datapath does the same to the frame.
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

// readShim returns the label stack entry or the I-TAG, which the megaflow then matches.
func (x *xlate) readShim() uint32 {
	x.VisitWord(flowtable.WIPv4, 0xffffffff<<flowtable.ShimShift)
	return x.flow.Key().Shim()
}

// Fields of a label stack entry (RFC 3032) and of an I-TAG (IEEE 802.1Q).
const (
	mplsBOS        = 1 << 8
	mplsTC         = 9 // lowest bit of the traffic class
	mplsLabel      = 12
	mplsIPv6Null   = 2 // IPv6 explicit NULL label (RFC 3032, 2.1)
	mplsDefaultTTL = 64
	pbbISID        = 0xffffff
	pbbPCP         = 29
	mplsTCBits     = 7 // bits of the traffic class
)

// firstEntry returns the label stack entry for a frame that has none. Its label, traffic class and
// TTL are those that Open vSwitch chooses.
func (x *xlate) firstEntry() uint32 {
	label, class, ttl := uint32(0), uint32(0), uint32(0)
	if openflow.NeedIPv6.Met(x) {
		label = mplsIPv6Null
	}
	if openflow.NeedIP.Met(x) {
		class = uint32(x.read(openflow.WholeField(openflow.FIPDSCP))[1]) & mplsTCBits
		ttl = uint32(x.read(openflow.WholeField(openflow.FIPTTL))[1])
	}
	if ttl == 0 {
		ttl = mplsDefaultTTL
	}
	return label<<mplsLabel | class<<mplsTC | mplsBOS | ttl
}

// pushMPLS inserts a label stack entry: a copy of the outermost one or, if there is none, the result
// of firstEntry.
func (x *xlate) pushMPLS(etherType uint16) {
	var entry uint32
	if openflow.NeedMPLS.Met(x) {
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
	if !openflow.NeedMPLS.Met(x) {
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
	if openflow.NeedPBB.Met(x) {
		tag = x.readShim() & pbbISID
	}
	if x.tagged() {
		tag |= uint32(x.read(openflow.WholeField(openflow.FVLANPCP))[1]) << pbbPCP
	}
	x.commit()
	x.emit(flowtable.Action{Op: flowtable.OpPushPBB, U32: tag})
	x.hideInner(packet.EtherTypePBB, tag)
	x.hideTags()
}

// popPBB removes the outer Ethernet header and the I-TAG, if any.
func (x *xlate) popPBB() {
	if !openflow.NeedPBB.Met(x) {
		return
	}
	x.commit()
	x.emit(flowtable.Action{Op: flowtable.OpPopPBB})
	x.hideInner(openflow.EtherTypeUnrevealed, 0)
	x.hideTags()
	x.opaque = true
}

// hideTags removes the VLAN tags from x.flow and from x.base. It is called when the frame has no tags in
// front: a new header hides them, or a pop has revealed headers that the key does not have.
func (x *xlate) hideTags() {
	x.tags = tagStack{}
	x.syncTags()
	x.baseTags = x.tags
	x.base[flowtable.WEthSrc], x.base[flowtable.WIP] = x.flow[flowtable.WEthSrc], x.flow[flowtable.WIP]
}

// decMPLSTTL decrements the TTL of the label stack entry. It returns false if the TTL has expired,
// which ends the action list.
func (x *xlate) decMPLSTTL() bool { return x.decHeaderTTL(openflow.NeedMPLS, openflow.FMPLSTTL) }

// decHeaderTTL decrements the TTL in field id of a header other than IP. A frame without the header,
// which lacks the prerequisite, stays as it is. The result is false if the TTL has expired.
func (x *xlate) decHeaderTTL(prerequisite openflow.Prereq, id openflow.FieldID) bool {
	if !prerequisite.Met(x) {
		return true
	}
	ttl := openflow.WholeField(id)
	v := x.read(ttl)
	if v[1] <= 1 {
		x.ttlExpired(&openflow.Action{}) // to controllers with id 0
		return false
	}
	x.set(ttl, openflow.Value64(v[1]-1), ttl.Ones())
	return true
}

// commitShim emits the change of the label stack entry or the I-TAG.
func (x *xlate) commitShim() {
	const word, mask = flowtable.WIPv4, 0xffffffff << flowtable.ShimShift
	if !x.differs(word, mask) || !openflow.NeedMPLS.Met(x) && !openflow.NeedPBB.Met(x) {
		return
	}
	shim := x.readShim()
	x.follow(word, mask)
	x.emit(flowtable.Action{Op: flowtable.OpSetShim, U32: shim})
}

// changesHeaders reports whether a kind of action adds or removes a header that hides
// others. Its effect cannot be undone at the end of a clone or a bucket.
func changesHeaders(k openflow.ActionKind) bool {
	switch k {
	case openflow.ActPushMPLS, openflow.ActPopMPLS, openflow.ActPushPBB, openflow.ActPopPBB, openflow.ActEncap, openflow.ActDecap:
		return true
	}
	return false
}

// needsHeaders reports whether an action depends on headers that a pop has revealed.
func needsHeaders(a *openflow.Action) bool {
	switch a.Kind {
	case openflow.ActOutput:
		return a.Port == openflow.PortNORMAL || a.Port == openflow.PortTable
	case openflow.ActController, openflow.ActNote, openflow.ActSample, openflow.ActExit, openflow.ActWriteActions, openflow.ActClearActions, openflow.ActWriteMetadata, openflow.ActOutputTrunc, openflow.ActEnqueue,
		openflow.ActSetQueue, openflow.ActPopQueue:
		return false
	}
	return true
}

// suspends reports whether an action must wait for a second look-up of the frame in the datapath. The
// translation of that look-up executes the action and the rest of the list.
func (x *xlate) suspends(a *openflow.Action) bool {
	return x.opaque && needsHeaders(a) || x.undone > 0 && changesHeaders(a.Kind)
}

// suspendedNote returns the text that a trace shows for a list of actions that ends because suspends has
// returned true.
func (x *xlate) suspendedNote() string {
	if x.opaque {
		return revealedNote
	}
	return "continues in a second look-up, because the actions behind this clone, bucket or patch port need the unchanged frame"
}

// revealedNote is what a trace shows for a look-up that sees the headers behind a popped header. A trace
// of a hypothetical frame has no such headers: their fields are 0.
const revealedNote = "continues in a second look-up, which sees the headers that the pop has revealed; they are 0 in a trace"

// continueLater emits a second look-up of the frame and ends the current action list. The translation of
// the second look-up executes "actions" and then, unless they belong to a bucket, the action set. The
// list that contains the current one continues with the frame as it is before the second look-up. note
// is the text that a trace shows.
func (x *xlate) continueLater(actions []openflow.Action, note string) {
	f := x.freeze(x.table)
	f.Actions = openflow.FormatActions(actions, openflow.WithTLVs(nil, x.p.TLVs()))
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
	x.exited = slices.ContainsFunc(actions, func(a openflow.Action) bool { return a.Kind == openflow.ActExit })
}

// continueWith executes the actions that continueLater, or the action controller(pause), has stored.
// table is the table of their flow.
func (x *xlate) continueWith(actions []openflow.Action, table uint8) {
	x.table = table
	next, jump := x.list(actions)
	if jump && x.countResubmit() {
		x.pipeline(next, true)
	}
}
