// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"math/bits"
	"net/netip"

	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// emit appends a datapath action. If the list has room only for OpDrop
// (flowtable.MaxActions), the translation ends with drop reason DropLoop.
func (x *xlate) emit(a flowtable.Action) {
	if len(x.actions) >= flowtable.MaxActions-2 {
		x.halt(packet.DropLoop)
		return
	}
	x.actions = append(x.actions, a)
}

// setOps lists the header fields that the datapath can set, in the order of the emitted
// actions. Several fields may use the same bits of the key; the prerequisite decides
// which of these fields the frame has. Neighbour discovery comes before the ICMP type,
// because a new type may change the kind of message. The type of an option comes before
// the address in it, because a flow that turns a solicitation into an advertisement
// changes both.
var setOps = []struct {
	field        openflow.FieldID
	op           flowtable.Op
	prerequisite openflow.Prereq
}{
	{openflow.FEthDst, flowtable.OpSetEthDst, openflow.NeedNothing}, {openflow.FEthSrc, flowtable.OpSetEthSrc, openflow.NeedNothing},
	{openflow.FIPSrc, flowtable.OpSetIPv4Src, openflow.NeedIPv4}, {openflow.FIPDst, flowtable.OpSetIPv4Dst, openflow.NeedIPv4},
	{openflow.FIPv6Src, flowtable.OpSetIPv6Src, openflow.NeedIPv6}, {openflow.FIPv6Dst, flowtable.OpSetIPv6Dst, openflow.NeedIPv6},
	{openflow.FIPv6Label, flowtable.OpSetIPv6Label, openflow.NeedIPv6}, {openflow.FNwTOS, flowtable.OpSetTOS, openflow.NeedIP},
	{openflow.FTCPSrc, flowtable.OpSetTpSrc, openflow.NeedPorts}, {openflow.FTCPDst, flowtable.OpSetTpDst, openflow.NeedPorts},
	{openflow.FNDTarget, flowtable.OpSetNDTarget, openflow.NeedICMPv6}, {openflow.FNDReserved, flowtable.OpSetNDReserved, openflow.NeedICMPv6},
	{openflow.FNDOptType, flowtable.OpSetNDOptionsType, openflow.NeedICMPv6}, {openflow.FNDSll, flowtable.OpSetNDSll, openflow.NeedICMPv6}, {openflow.FNDTll, flowtable.OpSetNDTll, openflow.NeedICMPv6},
	{openflow.FICMPType, flowtable.OpSetICMPType, openflow.NeedICMP}, {openflow.FICMPCode, flowtable.OpSetICMPCode, openflow.NeedICMP},
	{openflow.FICMPv6Type, flowtable.OpSetICMPType, openflow.NeedICMPv6}, {openflow.FICMPv6Code, flowtable.OpSetICMPCode, openflow.NeedICMPv6},
	{openflow.FNSHFlags, flowtable.OpSetNSHFlags, openflow.NeedNSH}, {openflow.FNSHTTL, flowtable.OpSetNSHTTL, openflow.NeedNSH},
	{openflow.FNSHSPI, flowtable.OpSetNSHSPI, openflow.NeedNSH}, {openflow.FNSHSI, flowtable.OpSetNSHSI, openflow.NeedNSH},
	{openflow.FNSHC1, flowtable.OpSetNSHC1, openflow.NeedNSH}, {openflow.FNSHC2, flowtable.OpSetNSHC2, openflow.NeedNSH},
	{openflow.FNSHC3, flowtable.OpSetNSHC3, openflow.NeedNSH}, {openflow.FNSHC4, flowtable.OpSetNSHC4, openflow.NeedNSH},
	{openflow.FARPOp, flowtable.OpSetARPOp, openflow.NeedARP}, {openflow.FARPSpa, flowtable.OpSetARPSpa, openflow.NeedARP}, {openflow.FARPTpa, flowtable.OpSetARPTpa, openflow.NeedARP},
	{openflow.FARPSha, flowtable.OpSetARPSha, openflow.NeedARP}, {openflow.FARPTha, flowtable.OpSetARPTha, openflow.NeedARP},
}

// commit emits the datapath actions for the changes that OpenFlow actions have made to the frame since
// the last commit. These are the differences between x.base and x.flow. A field that was set but never
// read adds no bits to the megaflow's mask.
func (x *xlate) commit() {
	if !x.dirty {
		return
	}
	for i := range setOps {
		x.commitField(setOps[i].field, setOps[i].op, setOps[i].prerequisite)
	}
	x.commitTTL()
	x.commitShim()
	x.commitTags()
	x.dirty = false
}

func (x *xlate) commitField(id openflow.FieldID, op flowtable.Op, prerequisite openflow.Prereq) {
	s := openflow.WholeField(id)
	word, hi, lo := s.Mask()
	differs := x.differs(word, hi)
	if lo != 0 {
		differs = x.differs(word+1, lo) || differs
	}
	if !differs || !prerequisite.Met(x) {
		return
	}
	v := x.read(s) // the datapath sets the whole field
	x.follow(word, hi)
	if lo == 0 {
		a := flowtable.Action{Op: op, U32: uint32(v[1])}
		if id.Bits() == 48 {
			a.U32, a.U64 = 0, v[1]
		}
		x.emit(a)
		return
	}
	x.follow(word+1, lo)
	x.emit(flowtable.Action{Op: op, U64: v[0]})
	x.emit(flowtable.Action{Op: flowtable.OpData, U64: v[1]})
}

// differs reports whether the OpenFlow actions may have changed bits of mask in a word since the last
// commit. It compares x.flow with x.base. If it must compare bits of the arriving frame, the megaflow
// matches them.
func (x *xlate) differs(word int, mask uint64) bool {
	mask &^= x.keep[word] & x.baseKeep[word]
	if mask == 0 {
		return false
	}
	if x.baseKeep[word]&mask != 0 {
		return true
	}
	// The end of a clone restores the frame, so x.flow may again depend on the arriving
	// frame.
	x.VisitWord(word, mask)
	return (x.flow[word]^x.base[word])&mask != 0
}

// follow records that emitted actions have set the bits of mask in a word: it copies these bits from
// x.flow to x.base.
func (x *xlate) follow(word int, mask uint64) {
	x.base[word] = x.base[word]&^mask | x.flow[word]&mask
	x.baseKeep[word] = x.baseKeep[word]&^mask | x.keep[word]&mask
}

func (x *xlate) commitTTL() {
	kept, baseKept := x.keep[flowtable.WIP]&ttlBits != 0, x.baseKeep[flowtable.WIP]&ttlBits != 0
	switch {
	case kept && baseKept && x.decs >= x.baseDecs:
		for range x.decs - x.baseDecs {
			x.emit(flowtable.Action{Op: flowtable.OpDecTTL})
		}
	case !kept && !baseKept && (x.flow[flowtable.WIP]^x.base[flowtable.WIP])&ttlBits == 0:
	default:
		ttl := x.read(openflow.WholeField(openflow.FIPTTL))
		x.emit(flowtable.Action{Op: flowtable.OpSetTTL, U32: uint32(ttl[1])})
	}
	x.follow(flowtable.WIP, ttlBits)
	x.baseDecs = x.decs
}

// output executes the action output to an ordinary or reserved port.
func (x *xlate) output(number uint32) {
	if !x.sendable() {
		return
	}
	switch number {
	case openflow.PortInPort:
		x.send(x.inPort())
	case openflow.PortNORMAL:
		x.normal()
	case openflow.PortFlood:
		x.flood(true, nil)
	case openflow.PortAll:
		x.flood(false, nil)
	case openflow.PortTable: // in a packet-out, or read from a field
		x.intoTables()
	case openflow.PortController, openflow.PortNone:
	default:
		if number == x.inPort() {
			x.note("not sent back to its input port")
			return
		}
		x.send(number)
	}
}

// send sends the frame to the bridge's port with this OpenFlow number.
func (x *xlate) send(number uint32) {
	port, ok := x.env.Port(number)
	if !ok || port.Kind == PortUplink {
		x.usedPorts = true
		x.noteDrop(packet.DropNoPort)
		x.note("the output port does not exist")
		return
	}
	x.sendTo(&port)
}

func (x *xlate) sendTo(port *PortInfo) {
	if x.halted || !x.sendable() {
		return
	}
	if port.Off {
		x.usedPorts = true
		x.noteDrop(packet.DropPortOff)
		x.note("the output port is down")
		return
	}
	if x.receivesCopies(port) {
		return
	}
	switch {
	case port.BFD && x.toBFD():
		x.noteDrop(packet.DropReserved)
		x.note("the tunnel keeps the destination address for BFD")
		return
	case port.Kind == PortPatch:
		x.cross(port)
		return
	case port.Kind == PortBond:
		x.sendToBond(port)
		return
	case port.Kind == PortTunnel && len(port.Remotes) > 0:
		x.replicate(port)
		return
	}
	out := flowtable.Action{Op: flowtable.OpOutput, U32: port.At()}
	if port.Kind == PortTunnel {
		var reason packet.DropReason
		if out, reason = x.tunnel(port); reason == packet.DropNone && !x.setTunnelFields(port) {
			reason = packet.DropTooBigForTunnel
		}
		if reason != packet.DropNone {
			x.noteDrop(reason)
			x.note("the tunnel cannot be used: " + reason.String())
			return
		}
	}
	x.commit()
	x.sampleOutput(port)
	x.emitQueue(port)
	x.emit(x.truncated(out))
	if !x.copying {
		x.sent = x.sent || !x.halted
		x.mirror(port, true)
	}
}

// bfdAddress is the destination MAC address of BFD packets in tunnels, 00:23:20:00:00:01 as in Open
// vSwitch.
const bfdAddress = 0x002320000001

// toBFD reports whether the frame's destination is bfdAddress. For another destination the
// megaflow matches only the highest bit that differs from bfdAddress, so that one megaflow
// serves many destinations.
func (x *xlate) toBFD() bool {
	differing := x.flow.Key().EthDst() ^ bfdAddress
	if differing == 0 {
		x.VisitWord(flowtable.WEthDst, 0xffffffffffff<<16)
		return true
	}
	x.VisitWord(flowtable.WEthDst, 1<<(15+bits.Len64(differing)))
	return false
}

// tunnel returns the datapath action for an output to a tunnel port. If the port has FlowVNI,
// FlowRemote or FlowLocal, the flow's tunnel field replaces the port's VNI, remote or local address.
func (x *xlate) tunnel(port *PortInfo) (flowtable.Action, packet.DropReason) {
	vni, local, remote := port.VNI, port.Local, port.Remote
	if port.FlowVNI {
		mask := uint64(0xffffff)
		if port.Encap == EncapGRE {
			mask = 0xffffffff
		}
		x.VisitWord(flowtable.WTunID, mask)
		vni = uint32(x.flow[flowtable.WTunID] & mask)
	}
	if port.FlowRemote {
		remote = x.tunnelAddr(openflow.FTunDst, openflow.FTunIPv6Dst, true, true)
	}
	if !remote.IsValid() {
		return flowtable.Action{}, packet.DropNoRoute
	}
	if port.FlowLocal {
		local = x.tunnelAddr(openflow.FTunSrc, openflow.FTunIPv6Src, remote.Is4(), remote.Is6())
	}
	index, reason := x.env.Tunnel(port.At(), vni, local, remote)
	return flowtable.TunnelAction(index, vni, uint16(port.At())), reason
}

// tunnelAddr returns the flow's tunnel address: the field v4 if want4 is set, or the
// field v6 if want6 is set. It tries IPv4 first. Address 0 counts as no address.
func (x *xlate) tunnelAddr(v4, v6 openflow.FieldID, want4, want6 bool) netip.Addr {
	if want4 {
		if v := x.read(openflow.WholeField(v4)); !v.IsZero() {
			return openflow.ValueAddr(v, 32)
		}
	}
	if want6 {
		if v := x.read(openflow.WholeField(v6)); !v.IsZero() {
			return openflow.ValueAddr(v, 128)
		}
	}
	return netip.Addr{}
}
