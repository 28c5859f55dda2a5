// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/openflow"
	"weft/openflow/fdb"
	"weft/packet"
)

// Requests to the host itself. In a network with services (fdb.Services), the host of a guest answers
// the guest's requests, for example DHCP, so no other guest sees them. Such a frame matches no megaflow.
// The control process answers it and installs no megaflow, so the next request comes to it, too. Other
// frames cost nothing more, because serves examines only broadcasts and frames to fdb.ServiceMAC and to
// the two multicast groups below.

const (
	ethBroadcast = 0xffffffffffff
	ethRouters   = 0x333300000002 // of ff02::2, all routers
	ethServers6  = 0x333300010002 // of ff02::1:2, all servers and relay agents of DHCPv6
	// UDP ports of a client and a server of DHCPv6 (RFC 8415 section 7.2).
	dhcpv6Client = 546
	dhcpv6Server = 547
)

// serves handles a frame that is a request to this host, or whose destination is fdb.ServiceMAC. It
// returns false for any other frame, which normal must forward. dst is the destination MAC address of
// the frame.
func (x *xlate) serves(from *PortInfo, network *fdb.Network, f *vlanFrame, dst uint64) bool {
	if network == nil || network.Services == nil || from.Kind != PortNormal || !from.Central {
		return false
	}
	if dst != ethBroadcast && dst != fdb.ServiceMAC && dst != ethRouters && dst != ethServers6 {
		return false
	}
	x.depends(fdb.RefOfNetwork(fdb.SegmentOf(from.VNI)))
	switch {
	case f.vid == 0 && !x.dirty && len(x.actions) == 0 && x.isRequest(network.Services, dst):
		x.request = true
		x.noteDrop(packet.DropReserved)
		x.note("a request to the host itself: control answers it")
	case dst == fdb.ServiceMAC:
		x.noteDrop(packet.DropReserved)
		x.note("the host does not answer this at its service's address")
	default:
		return false
	}
	return true
}

// isRequest reports whether the frame is a request that the network's services answer: a router
// solicitation, or a message to a DHCP server.
func (x *xlate) isRequest(s *fdb.Services, dst uint64) bool {
	switch dst {
	case ethRouters:
		return s.Advertise && x.hasField(openflow.FICMPv6Type) && x.read(openflow.WholeField(openflow.FICMPv6Type))[1] == routerSolicitation
	case ethServers6:
		return s.DHCPv6 && x.read(openflow.WholeField(openflow.FEthType))[1] == packet.EtherTypeIPv6 && x.hasField(openflow.FUDPSrc) &&
			x.read(openflow.WholeField(openflow.FUDPDst))[1] == dhcpv6Server && x.read(openflow.WholeField(openflow.FUDPSrc))[1] == dhcpv6Client
	}
	return s.DHCPv4 && x.read(openflow.WholeField(openflow.FEthType))[1] == packet.EtherTypeIPv4 && x.hasField(openflow.FUDPSrc) &&
		x.read(openflow.WholeField(openflow.FUDPDst))[1] == dhcpServer && x.read(openflow.WholeField(openflow.FUDPSrc))[1] == dhcpClient
}
