// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// meter executes the action meter: it emits an OpMeter for each band of the meter. It does not emit the
// frame's changes by earlier actions first.
func (x *xlate) meter(id uint32) {
	m := x.p.Meter(id)
	if m == nil {
		x.note("the meter does not exist")
		return
	}
	for i := range m.Bands {
		x.emit(flowtable.Action{Op: flowtable.OpMeter, U16: uint16(m.Bands[i].Precedence), U32: m.Bands[i].Slot, U64: uint64(packet.DropMeter)})
	}
}

// meterController emits an OpMeter for each drop band of the meter of a controller action. A frame
// beyond the rate does not go to the controller, but its other actions are executed.
func (x *xlate) meterController(c *openflow.Controller) {
	id := c.Meter
	if id == 0 {
		id = openflow.MeterController
	}
	m := x.p.Meter(id)
	if m == nil {
		return
	}
	for i := range m.Bands {
		if m.Bands[i].Precedence == 0 {
			x.emit(flowtable.Action{Op: flowtable.OpMeter, U32: m.Bands[i].Slot})
		}
	}
}
