// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"net/netip"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/packet"
)

// Local answers to ARP requests and neighbour solicitations. Weft answers for an IP address if a host
// behind a tunnel has announced the address, or if the central controller, weft-central, has declared
// it. Without local answers, every request would go to every host of the VNI.
//
// Weft never answers the first broadcast of a guest, because other hosts learn the guest's location from
// it. Networks that weft-central has declared are the exception: there it declares the locations. Weft
// forwards duplicate address detection (RFC 5227 section 1.1, RFC 4862 section 5.4.2), because several
// hosts might have the address. It also forwards unicast requests, and frames with a second VLAN tag,
// because each of a customer's VLANs has its own IP addresses.

// Operations of ARP (RFC 826).
const (
	arpRequest = 1
	arpReply   = 2
)

// announcement returns the IP address that an ARP or neighbour discovery frame announces for MAC
// address src. It returns an invalid address if the frame announces none.
func (x *xlate) announcement(f *vlanFrame, src uint64) netip.Addr {
	switch {
	case !x.hasField(openflow.FARPSpa) && !x.hasField(openflow.FNDTarget), x.innerTagged(f):
		return netip.Addr{}
	case x.hasField(openflow.FARPSpa):
		op := x.read(openflow.WholeField(openflow.FARPOp))[1]
		if op != arpRequest && op != arpReply || x.read(openflow.WholeField(openflow.FARPSha))[1] != src {
			return netip.Addr{}
		}
		return asAddress(x.read(openflow.WholeField(openflow.FARPSpa)), 32)
	case x.read(openflow.WholeField(openflow.FICMPv6Type))[1] == packet.NDAdvertisement:
		if x.read(openflow.WholeField(openflow.FNDTll))[1] != src {
			return netip.Addr{}
		}
		return asAddress(x.read(openflow.WholeField(openflow.FNDTarget)), 128)
	}
	if x.read(openflow.WholeField(openflow.FNDSll))[1] != src {
		return netip.Addr{}
	}
	return asAddress(x.read(openflow.WholeField(openflow.FIPv6Src)), 128)
}

// question returns the IP address for whose MAC address a broadcast or multicast frame asks. It returns
// an invalid address for a link-local IPv6 address, which may be a router's: an answer for a router
// needs the Router flag (RFC 4861 section 4.4), and Weft's answers never have it.
func (x *xlate) question() netip.Addr {
	if x.hasField(openflow.FARPSpa) {
		asker, asked := x.read(openflow.WholeField(openflow.FARPSpa)), x.read(openflow.WholeField(openflow.FARPTpa))
		if x.read(openflow.WholeField(openflow.FARPOp))[1] != arpRequest || asker.IsZero() || asker == asked {
			return netip.Addr{}
		}
		return asAddress(asked, 32)
	}
	if !x.hasField(openflow.FNDTarget) || x.read(openflow.WholeField(openflow.FICMPv6Type))[1] != packet.NDSolicitation || x.read(openflow.WholeField(openflow.FIPv6Src)).IsZero() {
		return netip.Addr{}
	}
	if asked := asAddress(x.read(openflow.WholeField(openflow.FNDTarget)), 128); !asked.IsLinkLocalUnicast() {
		return asked
	}
	return netip.Addr{}
}

// asAddress returns the IP address in a field value of 32 bits (IPv4) or 128 bits (IPv6). For value 0
// it returns an invalid address.
func asAddress(v openflow.Value128, bits uint) netip.Addr {
	if v.IsZero() {
		return netip.Addr{}
	}
	return openflow.ValueAddr(v, bits)
}

// dependsOnIP records that the translation depends on IP address "ip" in segment s. When the address
// changes, the control process translates the megaflow again. In a segment without a VNI, the hosts of
// all segments are visible, so the translation depends on every address.
func (x *xlate) dependsOnIP(s fdb.Segment, ip netip.Addr) {
	if s.Local() == 0 {
		x.depends(fdb.AnyRef)
		return
	}
	x.depends(fdb.RefOfIP(ip))
}

// answer answers a guest's ARP request or neighbour solicitation. It does so for the services of the
// host, for an address that the central controller (weft-central) has declared, and for a learned
// address behind a tunnel. It returns false if the frame must be forwarded instead, for example because
// an action has already changed or sent the frame. src is the guest's MAC address.
func (x *xlate) answer(inPort *PortInfo, s fdb.Segment, f *vlanFrame, src uint64) bool {
	if inPort.Kind != PortNormal || x.dirty || len(x.actions) > 0 {
		return false
	}
	asked := x.question()
	if !asked.IsValid() || x.innerTagged(f) {
		return false
	}
	vlan := f.vid
	x.dependsOnIP(s, asked)
	if network := x.network(s); network != nil {
		if network.Services.Has(asked) {
			x.depends(fdb.RefOfNetwork(s))
			return x.answerDeclared(fdb.ServiceMAC, src)
		}
		if mac, known := x.env.HostOf(s, asked); known {
			return x.answerDeclared(mac, src)
		}
		x.ask(network, fdb.Question{Segment: s, IP: asked})
	}
	x.depends(fdb.RefOfMAC(src))
	if !x.env.Announced(s, vlan, src, inPort.At()) {
		return false
	}
	mac, known := x.env.Neighbour(s, vlan, asked)
	if !known {
		return false
	}
	x.depends(fdb.RefOfMAC(mac))
	no, known := x.env.Locate(s, vlan, mac)
	if !known {
		return false
	}
	x.usedPorts = true
	behind, ok := x.env.PortAt(no)
	if !ok || behind.Kind != PortTunnel || behind.NoAnswers || behind.Central || !behind.accepts(s) || !x.carries(&behind, f) {
		return false
	}
	x.emitAnswer(mac, "answered locally: the address is known")
	return true
}

// answerDeclared answers a guest's ARP request or neighbour solicitation for an IP address that the
// central controller (weft-central) has declared, or that is the host's own service. mac is the MAC
// address in the answer, and asker is the guest's own one. If both are equal, answerDeclared does not
// answer, because the request is duplicate address detection.
func (x *xlate) answerDeclared(mac, asker uint64) bool {
	if mac == asker {
		return false
	}
	x.emitAnswer(mac, "answered locally: declared by central")
	return true
}

func (x *xlate) emitAnswer(mac uint64, note string) {
	x.note(note)
	x.emit(flowtable.Action{Op: flowtable.OpAnswer, U64: mac})
	x.sent = x.sent || !x.halted
}
