// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"net/netip"

	"weft/openflow/fdb"
)

// Question names an address of a declared network whose location the switch does not
// know. The switch asks weft-central for the location when a frame needs it. The switch
// lacks an address because the network sends addresses only on demand (Network.Asked),
// or because a new address has not arrived yet.
type Question struct {
	Segment fdb.Segment // 0: no question
	MAC     uint64      // if IP is invalid
	IP      netip.Addr
}

// Valid reports whether q asks for an address.
func (q Question) Valid() bool { return q.Segment != 0 }

// ask notes the first address with an unknown location that the frame needs. Frames
// that arrive from other hosts do not ask, because the switch knows all addresses
// behind its own ports.
func (x *xlate) ask(network *fdb.Network, q Question) {
	x.depends(fdb.RefOfNetwork(q.Segment))
	if from, ok := x.env.Port(x.inPort()); !ok || from.isCentralTunnel() {
		return
	}
	if x.toAsk.Valid() {
		return
	}
	x.toAsk, x.mustAsk = q, network.Asked
	x.note("asks weft-central for the address; this is what happens if there is none")
}
