// SPDX-License-Identifier: Apache-2.0

package xlate

// continues reports whether a frame that matches no flow of table 0 continues in CentralTable, which
// has the flows of weft-central. This is so if weft-central has declared the frame's input port.
func (x *xlate) continues() bool {
	if !x.env.Central() {
		return false
	}
	port, ok := x.env.Port(x.inPort())
	return ok && port.Central
}
