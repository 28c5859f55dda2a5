// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/packet"
)

// This file applies filter rules in the action normal, in networks that the central controller
// (weft-central) has declared. It puts ports into groups, and a group has rules (policy.go). A frame
// from a port with groups is tracked in the connection tracking zone of this port and looked up again.
// The second translation checks the rules, commits a new connection, and executes normal. A frame to a
// port with groups is tracked in the zone of that port, and a further translation delivers it. Frames
// between ports without groups skip all of this.
//
// Frames to multicast and broadcast addresses have no connections, so the rules are compared with each
// frame itself.

// check says where the action normal continues after a frame was tracked.
type check uint8

const (
	checkNone check = iota
	// checkSent means that the rules of the input port decide whether normal forwards the frame.
	checkSent
	// checkDelivered means that the rules of an output port decide whether it gets the frame.
	checkDelivered
)

// kindOfFrame says how the rules treat a frame.
type kindOfFrame uint8

const (
	filteredFrame kindOfFrame = iota
	// exemptFrame needs no rule: ARP, router solicitation, neighbour discovery and multicast listener
	// discovery, without which no address of the network is reachable.
	exemptFrame
	// foreignFrame is not IP, and no rule can allow it.
	foreignFrame
)

// ICMPv6 types of a multicast listener query (RFC 3810) and of a router solicitation (RFC 4861).
const (
	mldQuery           = 130
	routerSolicitation = 133
)

func (x *xlate) kindOfFrame() kindOfFrame {
	switch x.read(openflow.WholeField(openflow.FEthType))[1] {
	case packet.EtherTypeARP, packet.EtherTypeRARP:
		return exemptFrame
	case packet.EtherTypeIPv4:
		return filteredFrame
	case packet.EtherTypeIPv6:
	default:
		return foreignFrame
	}
	if x.hasField(openflow.FICMPv6Type) {
		switch x.read(openflow.WholeField(openflow.FICMPv6Type))[1] {
		case mldQuery, mldReport, mldDone, mldReportV2, packet.NDSolicitation, packet.NDAdvertisement, routerSolicitation:
			return exemptFrame
		}
	}
	return filteredFrame
}

// maySend reports whether normal may forward a frame of the port now. It returns false if the rules
// refuse the frame. It also returns false if the datapath must track the frame first. A later
// translation then decides.
func (x *xlate) maySend(network *fdb.Network, from *PortInfo) bool {
	if network == nil || from.Policy == nil || x.check == checkSent {
		return true
	}
	x.usedPorts = true
	switch x.kindOfFrame() {
	case exemptFrame:
		return true
	case foreignFrame:
		x.refuseFrame(from, "it is not IP")
		return false
	}
	if x.toGroupAddress() {
		return x.allows(from, x.frameSubject(from, true))
	}
	x.track(from, checkSent)
	return false
}

// deliver sends the frame to a port of a network that the central controller (weft-central) has
// declared, if the rules of the port's groups allow it. A unicast IP frame to a port with groups is
// tracked first, and a later translation decides.
func (x *xlate) deliver(to *PortInfo) {
	if to.Policy == nil {
		x.sendTo(to)
		return
	}
	x.usedPorts = true
	switch x.kindOfFrame() {
	case exemptFrame:
		x.sendTo(to)
		return
	case foreignFrame:
		x.refuseFrame(to, "it is not IP")
		return
	}
	if x.toGroupAddress() {
		if x.allows(to, x.frameSubject(to, false)) {
			x.sendTo(to)
		}
		return
	}
	x.track(to, checkDelivered)
}

func (x *xlate) toGroupAddress() bool {
	const bit = 40 // of a MAC address: the group bit
	return x.read(openflow.Subfield{Field: openflow.FEthDst, Offset: bit, Bits: 1})[1] != 0
}

// track makes the datapath track the frame in the connection tracking zone of the port and look it up
// again. The translation of this second look-up begins with resumeCheck.
func (x *xlate) track(port *PortInfo, c check) {
	x.commit()
	x.emitTrack(port, 0)
	x.tracks = true
	x.sent = x.sent || !x.halted // a frame that is looked up again does not count as dropped
	f := x.freeze(0)
	f.ActionSet, f.Stack = "", "" // they belong to the present translation
	f.Check = c
	if c == checkDelivered {
		f.To = port.At()
	}
	x.recirculate(&f)
	x.note("continues after tracking for the groups of port " + port.Name)
	x.untrack()
}

func (x *xlate) emitTrack(port *PortInfo, bits uint32) {
	r := flowtable.CTRequest{Zone: policyZone(port), Bits: bits}
	for _, a := range r.AppendTo(nil) {
		x.emit(a)
	}
}

// resumeCheck continues the action normal after a frame was tracked.
func (x *xlate) resumeCheck() {
	x.usedPorts = true
	if x.check == checkSent {
		if from, ok := x.arrivedOn(); !ok || from.Policy == nil || x.admitConnection(&from, true) {
			x.normal()
		}
		return
	}
	to, ok := x.env.PortAt(x.checkedTo)
	switch {
	case !ok:
		x.noteDrop(packet.DropNoPort)
	case to.Policy == nil || x.admitConnection(&to, false):
		x.sendTo(&to)
	}
}

// admitConnection reports whether the rules of the port allow the connection of a tracked frame. It
// commits an allowed new connection. sent is true if the port has sent the frame, and false if the
// frame is for the port.
func (x *xlate) admitConnection(port *PortInfo, sent bool) bool {
	state := x.read(openflow.WholeField(openflow.FCTState))[1]
	if state&flowtable.StateTracked == 0 || state&flowtable.StateInvalid != 0 {
		x.refuseFrame(port, "it fits no connection (ct_state=+inv)")
		return false
	}
	reply := state&flowtable.StateReply != 0
	s := &subject{x: x, began: sent != reply, protocol: openflow.FCTNwProto, port: openflow.FCTTpDst, icmpType: openflow.FCTTpSrc,
		peer: x.peerOf(sent)}
	v6 := x.read(openflow.WholeField(openflow.FEthType))[1] == packet.EtherTypeIPv6
	switch {
	case v6 && s.began:
		s.remote = openflow.FCTIPv6Dst
	case v6:
		s.remote = openflow.FCTIPv6Src
	case s.began:
		s.remote = openflow.FCTNwDst
	default:
		s.remote = openflow.FCTNwSrc
	}
	if !x.allows(port, s) {
		return false
	}
	if state&flowtable.StateNew != 0 {
		x.emitTrack(port, flowtable.CTCommit)
		x.untrack()
	}
	return true
}

// frameSubject returns what the rules are compared with for a frame that has no connection: the fields
// of the frame itself.
func (x *xlate) frameSubject(port *PortInfo, sent bool) *subject {
	s := &subject{x: x, began: sent, protocol: openflow.FIPProto, port: openflow.FTCPDst, icmpType: openflow.FICMPType, peer: x.peerOf(sent)}
	v6 := x.read(openflow.WholeField(openflow.FEthType))[1] == packet.EtherTypeIPv6
	switch {
	case v6 && sent:
		s.remote = openflow.FIPv6Dst
	case v6:
		s.remote = openflow.FIPv6Src
	case sent:
		s.remote = openflow.FIPDst
	default:
		s.remote = openflow.FIPSrc
	}
	s.noPorts = x.read(openflow.WholeField(openflow.FIPFrag))[1]&flowtable.FragLater != 0
	return s
}

// allows reports whether the rules of a port allow the packet that s describes. It adds the result to
// the trace, and records the drop reason of a refused frame.
func (x *xlate) allows(port *PortInfo, s *subject) bool {
	rule, open := s.allowed(port.Policy)
	switch {
	case open:
		x.note("the groups of port " + port.Name + " do not restrict what it begins")
	case rule != nil:
		x.note("allowed by a rule of port " + port.Name + ": " + rule.Name)
	default:
		x.refuseFrame(port, "no rule allows it")
		x.askForPeer(s)
		return false
	}
	return true
}

func (x *xlate) refuseFrame(port *PortInfo, reason string) {
	x.noteDrop(packet.DropGroupRules)
	x.note("refused by the groups of port " + port.Name + ": " + reason)
}

// askForPeer handles a frame that the rules have refused because the switch does not know the address of
// the other end. It makes the control process ask the central controller (weft-central) for this
// address, which may be in a group that a rule allows.
func (x *xlate) askForPeer(s *subject) {
	if !s.unknown.Valid() {
		return
	}
	if network := x.network(s.unknown.Segment); network != nil {
		x.depends(fdb.RefOfNetwork(s.unknown.Segment))
		x.noteQuestion(network, s.unknown)
	}
}

// peerOf returns a function that finds the groups of the other end of a frame. sent is true if the frame
// is from the port whose rules decide. The other end is then found by its MAC address. For a frame to
// this port, a sender on this switch has the groups of its input port, whatever address it uses. A
// sender on another host is found by its MAC address.
func (x *xlate) peerOf(sent bool) func() (*fdb.Groups, fdb.Question) {
	return func() (*fdb.Groups, fdb.Question) {
		from, ok := x.arrivedOn()
		if !ok {
			return nil, fdb.Question{}
		}
		field := openflow.FEthDst
		if !sent {
			if from.Kind == PortNormal {
				if from.Policy == nil {
					return nil, fdb.Question{}
				}
				return from.Policy.Groups, fdb.Question{}
			}
			field = openflow.FEthSrc
		}
		segment, mac := x.segment(&from), x.read(openflow.WholeField(field))[1]
		x.depends(fdb.RefOfMAC(mac))
		place, ok := x.env.Place(segment, mac)
		if !ok {
			return nil, fdb.Question{Segment: segment, MAC: mac}
		}
		return place.Groups, fdb.Question{}
	}
}
