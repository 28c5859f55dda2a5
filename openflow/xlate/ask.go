// SPDX-License-Identifier: Apache-2.0

package xlate

import "weft/openflow/fdb"

// ask notes the first address with an unknown location that the frame needs. Frames
// that arrive from other hosts do not ask, because the switch knows all addresses
// behind its own ports.
func (x *xlate) ask(network *fdb.Network, q fdb.Question) {
	x.depends(fdb.RefOfNetwork(q.Segment))
	if from, ok := x.env.Port(x.inPort()); !ok || from.isCentralTunnel() {
		return
	}
	x.noteQuestion(network, q)
}

// noteQuestion notes the first question of the translation.
func (x *xlate) noteQuestion(network *fdb.Network, q fdb.Question) {
	if x.toAsk.Valid() {
		return
	}
	x.toAsk, x.mustAsk = q, network.Asked
	x.note("asks weft-central for the address; this is what happens if there is none")
}
