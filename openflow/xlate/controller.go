// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
)

// controller sends the current frame to OpenFlow controllers, and to observers that capture the port
// CONTROLLER.
func (x *xlate) controller(c *openflow.Controller) {
	if !x.sendable() {
		return
	}
	x.commit()
	x.meterController(c)
	x.emit(flowtable.Action{Op: flowtable.OpController, U32: uint32(c.MaxLen), U64: uint64(x.noted(c))})
	x.sent = x.sent || !x.halted
}
