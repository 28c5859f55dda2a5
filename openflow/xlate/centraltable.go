// SPDX-License-Identifier: Apache-2.0

package xlate

// continues reports whether a frame that matches no flow of table 0 continues in CentralTable. This
// table has the flows of weft-central, the central controller, for the ports that weft-central has
// declared.
func (x *xlate) continues() bool {
	if !x.env.Central() {
		return false
	}
	port, ok := x.env.Port(x.inPort())
	return ok && port.Central
}
