package openflow

import (
	"net/netip"

	"weft/flowtable"
)

// ARP and neighbour discovery across an overlay are answered where they are asked,
// if the answer is known: otherwise each question goes to every host of the VNI.
// What is known comes from what hosts have said of themselves in both. A guest's
// first frame for all is none that is answered, for it tells the other hosts where
// the guest is now. The question
// for an address that several might have (RFC 5227 section 1.1, RFC 4862 section
// 5.4.2) and one that is sent to a single host go their way.

// The requests and replies of ARP (RFC 826).
const (
	arpRequest = 1
	arpReply   = 2
)

// announcement is the address that the sender of the frame says to have; invalid
// for any other frame, and where it says so of another's MAC.
func (x *xlate) announcement(src uint64) netip.Addr {
	switch {
	case x.has(FARPSpa):
		op := x.read(whole(FARPOp))[1]
		if op != arpRequest && op != arpReply || x.read(whole(FARPSha))[1] != src {
			return netip.Addr{}
		}
		return asAddress(x.read(whole(FARPSpa)), 32)
	case !x.has(FNDTarget):
		return netip.Addr{}
	case x.read(whole(FICMPv6Type))[1] == ndAdvert:
		if x.read(whole(FNDTll))[1] != src {
			return netip.Addr{}
		}
		return asAddress(x.read(whole(FNDTarget)), 128)
	}
	if x.read(whole(FNDSll))[1] != src {
		return netip.Addr{}
	}
	return asAddress(x.read(whole(FIPv6Src)), 128)
}

// question is the address that the frame, sent to many, asks for. By link-local
// addresses hosts know their routers, and an answer would have to say that it is
// one.
func (x *xlate) question() netip.Addr {
	if x.has(FARPSpa) {
		asker, asked := x.read(whole(FARPSpa)), x.read(whole(FARPTpa))
		if x.read(whole(FARPOp))[1] != arpRequest || asker.isZero() || asker == asked {
			return netip.Addr{}
		}
		return asAddress(asked, 32)
	}
	if !x.has(FNDTarget) || x.read(whole(FICMPv6Type))[1] != ndSolicit || x.read(whole(FIPv6Src)).isZero() {
		return netip.Addr{}
	}
	if asked := asAddress(x.read(whole(FNDTarget)), 128); !asked.IsLinkLocalUnicast() {
		return asked
	}
	return netip.Addr{}
}

// asAddress is an address in a field; invalid for none.
func asAddress(v Value128, bits uint) netip.Addr {
	if v.isZero() {
		return netip.Addr{}
	}
	return valueAddr(v, bits)
}

// answer answers a guest's question for an address behind a tunnel; it reports
// false where the frame is to go its way. Only a frame that is still as it came is
// answered.
func (x *xlate) answer(from *PortInfo, s Segment, vlan uint16, src uint64) bool {
	if from.Kind != PortNormal || x.dirty || len(x.actions) > 0 {
		return false
	}
	asked := x.question()
	if !asked.IsValid() {
		return false
	}
	x.usedMACs = true
	if !x.env.Announced(s, vlan, src, from.No) {
		return false
	}
	mac, known := x.env.Neighbour(s, vlan, asked)
	if !known {
		return false
	}
	no, known := x.env.MAC(s, vlan, mac)
	if !known {
		return false
	}
	x.usedPorts = true
	behind, ok := x.env.Port(no)
	if !ok || behind.Kind != PortTunnel || behind.NoAnswers || !behind.takes(s) {
		return false
	}
	x.note("the answer is known")
	x.emit(flowtable.Action{Op: flowtable.OpAnswer, U64: mac})
	x.sent = x.sent || !x.halted
	return true
}
