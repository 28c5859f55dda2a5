// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/packet"
	"weft/port"
)

const (
	// ControllerPort is the port of captures of the frames that flows send to the
	// controller. It is OpenFlow's port number of the controller.
	ControllerPort = 0xfffd
	// controllerIntervalNS is the average time between two frames that a worker
	// captures for the controller. controllerBurst is the number of frames that it
	// may capture at once. Frames beyond this rate are not captured. The burst covers 15 ms
	// at this rate: a busy machine may suspend the worker for so long.
	controllerIntervalNS = 15_000
	controllerBurst      = 1_000
	// controllerReserveNS is the average time between two frames of one port that the worker captures even
	// if other ports have used up the rate, and controllerReserve is the number of such frames at once. All
	// ports together may double the rate.
	controllerReserveNS = controllerIntervalNS * port.MaxPorts
	controllerReserve   = 8
)

// toController captures the first maxLen bytes of frame i, with the changes of
// earlier actions, for each capture of ControllerPort. The record of a tracked frame also
// has the frame's key, with the connection's original tuple. toController reports false
// if there is no such capture, or the rates of all ports and of the frame's port are exceeded.
func (w *Worker) toController(i int, maxLen, note uint32) (shown bool) {
	if !w.captures.controller {
		return false
	}
	for at := range w.captures.list {
		t := &w.captures.list[at]
		if t.Kind != CapturePort || t.Port != ControllerPort {
			continue
		}
		if !shown && !w.mayControl(&w.batch.Frames[i]) {
			return false
		}
		shown = true
		if r := w.writeRecord(sight{capture: at, frame: i, kind: CapturedOut, port: ControllerPort, bounded: true, maxLen: maxLen, keyed: w.keys[i].Tracked()}); r != nil {
			r.sent(ControllerPort)
			r.setNote(note)
		}
	}
	return shown
}

// mayControl reports whether the rate of all ports, or else the reserve of the frame's port, allows a
// capture for the controller, and counts it.
func (w *Worker) mayControl(f *packet.Frame) bool {
	p := &w.ports[f.InPort%uint32(len(w.ports))]
	return port.TakeToken(&w.controllerDue, w.now, controllerIntervalNS, controllerBurst) ||
		port.TakeToken(&p.reservedNS, w.now, controllerReserveNS, controllerReserve)
}
