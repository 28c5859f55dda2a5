// SPDX-License-Identifier: Apache-2.0

package xlate

import "weft/openflow/fdb"

// ask records that the frame needs the location of an address. The control process then asks the central
// controller, weft-central, for it. A frame from another host never needs this: it is for a port of this
// switch, and the switch knows all addresses behind its own ports.
func (x *xlate) ask(network *fdb.Network, q fdb.Question) {
	x.depends(fdb.RefOfNetwork(q.Segment))
	if from, ok := x.env.Port(x.inPort()); !ok || from.isCentralTunnel() {
		return
	}
	x.noteQuestion(network, q)
}

// noteQuestion stores q for Translation.Question. A translation has only one Question, so later calls
// have no effect.
func (x *xlate) noteQuestion(network *fdb.Network, q fdb.Question) {
	if x.toAsk.Valid() {
		return
	}
	x.toAsk, x.mustAsk = q, network.Asked
	x.note("asks weft-central for the address; this is what happens if there is none")
}
