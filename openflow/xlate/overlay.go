// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"net/netip"
	"slices"

	"weft/openflow"
	"weft/openflow/fdb"
)

// A tunnel port with a list of remotes is an overlay without control plane (RFC 7348 section 4) and
// without multicast. Broadcasts go to each remote. The switch learns for each address which remote it is
// behind.

// replicate sends a copy of the frame to every remote of the port, except those whose BFD session has
// failed.
func (x *xlate) replicate(port *PortInfo) {
	x.usedPorts = true // control translates the megaflow again when a remote is lost or returns
	for _, remote := range port.Remotes {
		if slices.Contains(port.Lost, remote) {
			x.note("no copy to " + remote.String() + ": its BFD session has failed")
			continue
		}
		x.sendTo(port.towards(remote))
	}
}

// towards returns a copy of the port that has remote as its only remote.
func (p *PortInfo) towards(remote netip.Addr) *PortInfo {
	one := *p
	one.Remote, one.Remotes, one.FlowRemote = remote, nil, false
	return &one
}

// origin returns the remote that sent the frame, for a port with Remotes and for the tunnel of the
// central controller (weft-central). For other ports it returns an invalid address.
func (x *xlate) origin(port *PortInfo) netip.Addr {
	if port.Kind != PortTunnel || len(port.Remotes) == 0 && !port.Central {
		return netip.Addr{}
	}
	return x.tunnelAddr(openflow.FTunSrc, openflow.FTunIPv6Src, true, true)
}

// sendLearned sends the frame to the port behind which an address was learned. If normal has learned
// the remote of the address, only this remote gets the frame. An address behind a remote whose BFD
// session has failed may have moved, so the frame then goes to all other remotes.
func (x *xlate) sendLearned(port *PortInfo, s fdb.Segment, vlan uint16, mac uint64) {
	if len(port.Remotes) > 0 || port.Central {
		if remote := x.env.VTEP(s, vlan, mac); remote.IsValid() && !slices.Contains(port.Lost, remote) {
			port = port.towards(remote)
		}
	}
	x.sendWithin(port, s)
}
