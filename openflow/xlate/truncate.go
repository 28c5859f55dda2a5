// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// outputTruncated executes output(port=number,max_len=limit). As in Open vSwitch it sends
// nothing to a patch port: the peer's tables would see a frame without its end.
func (x *xlate) outputTruncated(number uint32, limit uint64) {
	if number == openflow.PortInPort {
		number = x.inPort()
	} else if number == x.inPort() {
		x.note("not sent back to its input port")
		return
	}
	if port, ok := x.env.Port(number); ok && port.Kind == PortPatch {
		x.usedPorts = true
		x.noteDrop(packet.DropNoPort)
		x.note("a truncated frame is not sent to a patch port")
		return
	}
	x.limit = uint32(limit)
	x.send(number)
	x.limit = 0
}

// truncated returns an output to a port or a tunnel that sends at most x.limit bytes.
func (x *xlate) truncated(out flowtable.Action) flowtable.Action {
	switch {
	case x.limit == 0:
	case out.Op == flowtable.OpTunnel:
		out.SetMaxInner(x.limit)
	default:
		out.Op, out.U64 = flowtable.OpOutputTruncated, uint64(x.limit)
	}
	return out
}
