// SPDX-License-Identifier: Apache-2.0

package xlate

// continues returns true if a frame without a matching flow in table 0
// continues in CentralTable.
func (x *xlate) continues() bool {
	if !x.env.Central() {
		return false
	}
	port, ok := x.env.Port(x.inPort())
	return ok && port.Central
}
