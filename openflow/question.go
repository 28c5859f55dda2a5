// SPDX-License-Identifier: Apache-2.0

package openflow

import "net/netip"

// Question names an address of a declared network whose place the switch does not know. A
// network with Asked has more addresses than the switch is told: it asks weft-central when
// a frame needs one.
type Question struct {
	Segment Segment // 0: no question
	MAC     uint64  // if IP is invalid
	IP      netip.Addr
}

// Valid reports whether q asks for an address.
func (q Question) Valid() bool { return q.Segment != 0 }

// ask notes that the frame needs an address that the switch does not know. The first
// address of a frame counts. Frames from other hosts ask for nothing: the switch knows all
// addresses behind its own ports.
func (x *xlate) ask(network *Network, q Question) {
	x.depends(refOfNetwork(q.Segment))
	if from, ok := x.env.Port(x.inPort()); !network.Asked || !ok || from.isCentralTunnel() {
		return
	}
	if x.asks.Valid() {
		return
	}
	x.asks = q
	x.note("asks weft-central for the address; this is what happens if there is none")
}
