// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/packet"
	"weft/port"
)

const (
	// ControllerPort is the value of Capture.Port that selects the frames that flows send to the
	// controller. It is OpenFlow's port number of the controller; no port of the datapath has it.
	ControllerPort = 0xfffd
	// controllerIntervalNS is the shortest average time between two frames that a worker captures for the
	// controller. controllerBurst is the number of frames that it may capture at once. Frames beyond this rate
	// are not captured. The burst is 15 ms of frames at this rate, because a busy machine may suspend the worker
	// for so long.
	controllerIntervalNS = 15_000
	controllerBurst      = 1_000
	// The worker captures some frames of each port even if other ports have used up the rate.
	// controllerReserveNS is the shortest average time between two such frames of one port, and
	// controllerReserve is the number of them at once. The reserves of all ports may double the rate.
	controllerReserveNS = controllerIntervalNS * port.MaxPorts
	controllerReserve   = 8
)

// toController captures the first maxLen bytes of frame i, with the changes of earlier actions, for each
// capture whose Port is ControllerPort. note becomes Captured.Note. If the frame was tracked, the record also
// has the frame's key with the connection's original tuple. toController returns false if there is no such
// capture, or if the frame exceeds the rate (mayControl).
func (c *captures) toController(i int, maxLen, note uint32) (shown bool) {
	if !c.controller {
		return false
	}
	for at := range c.list {
		t := &c.list[at]
		if t.Kind != CapturePort || t.Port != ControllerPort {
			continue
		}
		if !shown && !c.mayControl(&c.batch.Frames[i]) {
			return false
		}
		shown = true
		if r := c.writeRecord(sight{capture: at, frame: i, kind: CapturedOut, port: ControllerPort, bounded: true, maxLen: maxLen, keyed: c.keys[i].Tracked()}); r != nil {
			r.sent(ControllerPort)
			r.setNote(note)
		}
	}
	return shown
}

// mayControl takes a token for a capture for the controller: from the bucket of all ports, or else from the
// reserve of the frame's input port. It returns false if both are empty.
func (c *captures) mayControl(f *packet.Frame) bool {
	p := &c.ports[f.InPort%uint32(len(c.ports))]
	return port.TakeToken(&c.controllerDue, c.now, controllerIntervalNS, controllerBurst) ||
		port.TakeToken(&p.reservedNS, c.now, controllerReserveNS, controllerReserve)
}
