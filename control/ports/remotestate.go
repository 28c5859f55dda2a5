// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"weft/api"
	"weft/control/change"
	"weft/control/underlay"
	"weft/openflow/xlate"
)

// This file describes the state of each tunnel remote, and warns about guests' MTUs that tunnels cannot
// carry.

// declaredRemotes returns the remotes of all tunnel ports, sorted by port number. The remotes of one
// port are in the order of its option remote=.
func (ps *Ports) declaredRemotes(*change.Tx) []underlay.Tunnel {
	var list []underlay.Tunnel
	for _, no := range slices.Sorted(maps.Keys(ps.byNumber)) {
		p := ps.byNumber[no]
		if !p.isTunnel() || p.info.FlowRemote {
			continue
		}
		remotes := p.info.Remotes
		if p.info.Remote.IsValid() {
			remotes = []netip.Addr{p.info.Remote}
		}
		for _, remote := range remotes {
			list = append(list, underlay.Tunnel{Port: no, Local: p.info.Local, Remote: remote})
		}
	}
	return list
}

// describeRemotes adds the states of a tunnel port's remotes to its description, and a warning if the
// MTU of a guest exceeds that of the path to a remote.
func (ps *Ports) describeRemotes(_ *change.Tx, p *switchPort, a *api.Port, guests []guestMTU) {
	states, omitted := ps.templates.RemotesOf(p.saved.Number)
	a.RemotesOmitted = omitted
	smallest, most := underlay.RemoteState{}, 0
	encap := parseEncap(p.values)
	for _, s := range states {
		a.Remotes = append(a.Remotes, api.Remote{Address: s.Remote.String(), State: s.State, Reason: s.Reason, Device: s.Device, MTU: s.MTU, BFD: describeBFD(s.BFD)})
		if fits := s.MTU - encap.Overhead(s.Remote); fits > 0 && (most == 0 || fits < most) {
			smallest, most = s, fits
		}
	}
	options := 0
	if p.info.Encap == xlate.EncapGeneve {
		options = ps.pipeline.TLVsOf(p.info.Bridge).OptionBytes()
	}
	if warning := mtuWarning(p, smallest, most, options, guests); warning != "" {
		a.Warnings = append(a.Warnings, warning)
	}
}

// guestMTU is the MTU, in bytes, of a guest's port.
type guestMTU struct {
	port *switchPort
	mtu  int
}

// defaultMTU is the MTU of a guest whose port has no option mtu= (virtio 1.2 section 5.1.4).
const defaultMTU = 1500

// mtuReader is a driver that knows the present MTU of its device, which an operator may change.
type mtuReader interface {
	// mtu returns the MTU in bytes, or 0 if it is unknown.
	mtu() int
}

// guestMTUs returns the MTUs of all guests' ports, the largest first.
func (ps *Ports) guestMTUs(*change.Tx) []guestMTU {
	var guests []guestMTU
	for _, p := range ps.byNumber {
		if p.info.Kind != xlate.PortNormal {
			continue
		}
		mtu := 0
		if device, ok := p.driver.(mtuReader); ok {
			mtu = device.mtu()
		}
		if mtu == 0 {
			mtu, _ = strconv.Atoi(p.values["mtu"]) // valid if present: the option table has checked it
		}
		if mtu == 0 {
			mtu = defaultMTU
		}
		guests = append(guests, guestMTU{p, mtu})
	}
	slices.SortFunc(guests, func(a, b guestMTU) int {
		if a.mtu != b.mtu {
			return b.mtu - a.mtu
		}
		return int(a.port.saved.Number) - int(b.port.saved.Number)
	})
	return guests
}

// shares reports whether the action normal can send frames from a guest's port into a tunnel. It can
// if both have the same VNI, if the guest's port has none, or if flows choose the tunnel's VNI.
func (g *guestMTU) shares(tunnel *switchPort) bool {
	return !g.port.info.InVNI || tunnel.info.FlowVNI || g.port.info.VNI == tunnel.info.VNI
}

// mtuWarning returns a warning about guests whose MTU is too large for a path of a tunnel,
// or "". mostBytes is the largest inner IP packet on the path; 0: it is unknown. options is the
// length in bytes of the Geneve options that each packet may carry.
func mtuWarning(p *switchPort, path underlay.RemoteState, mostBytes, options int, guests []guestMTU) string {
	fits := mostBytes - options
	if fits <= 0 {
		return ""
	}
	var first *guestMTU
	others := 0
	for i := range guests {
		switch g := &guests[i]; {
		case g.mtu <= fits || !g.shares(p):
		case first == nil:
			first = g
		default:
			others++
		}
	}
	if first == nil {
		return ""
	}
	who := "port " + first.port.saved.Name
	if others > 0 {
		who += fmt.Sprintf(" and %d more", others)
	}
	device := path.Device
	if device == "" {
		device = "the path"
	}
	behind := ""
	if options > 0 {
		behind = fmt.Sprintf(" behind the %d bytes of Geneve options of the TLV map", options)
	}
	return fmt.Sprintf("MTU %d of %s exceeds %d, the most that %s carries to %s%s; expected mtu=%d at the guests, or an MTU of %d at %s",
		first.mtu, who, fits, p.saved.Name, path.Remote, behind, fits, path.MTU+first.mtu-fits, device)
}

// warnGuest adds a warning for each tunnel that cannot carry the MTU of a guest's new or changed port.
func (ps *Ports) warnGuest(tx *change.Tx, p *switchPort, a *api.Port) {
	if p.info.Kind != xlate.PortNormal {
		return
	}
	guests := slices.DeleteFunc(ps.guestMTUs(tx), func(g guestMTU) bool { return g.port != p })
	for _, no := range slices.Sorted(maps.Keys(ps.byNumber)) {
		if t := ps.byNumber[no]; t.isTunnel() {
			var about api.Port
			ps.describeRemotes(tx, t, &about, guests)
			a.Warnings = append(a.Warnings, about.Warnings...)
		}
	}
}
