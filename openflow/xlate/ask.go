// SPDX-License-Identifier: Apache-2.0

package xlate

import "weft/openflow/fdb"

// ask notes that the frame needs the location of an address, for which control then asks
// weft-central. Frames from other hosts are left out: they are for ports of this switch, and the
// switch knows all addresses behind its own ports.
func (x *xlate) ask(network *fdb.Network, q fdb.Question) {
	x.depends(fdb.RefOfNetwork(q.Segment))
	if from, ok := x.env.Port(x.inPort()); !ok || from.isCentralTunnel() {
		return
	}
	x.noteQuestion(network, q)
}

// noteQuestion stores q for Translation.Question. Only the first question of a translation counts.
func (x *xlate) noteQuestion(network *fdb.Network, q fdb.Question) {
	if x.toAsk.Valid() {
		return
	}
	x.toAsk, x.mustAsk = q, network.Asked
	x.note("asks weft-central for the address; this is what happens if there is none")
}
