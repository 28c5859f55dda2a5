// SPDX-License-Identifier: Apache-2.0

package datapath

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
)

// toController captures the first maxLen bytes of frame i, with the changes of
// earlier actions, for each capture of ControllerPort. The record of a tracked frame also
// has the frame's key, with the connection's original tuple. toController reports false
// if there is no such capture or the rate is exceeded.
func (w *Worker) toController(i int, maxLen, note uint32) (shown bool) {
	if !w.captures.controller {
		return false
	}
	due := max(w.controllerDue, w.now)
	for at := range w.captures.list {
		t := &w.captures.list[at]
		if t.Kind != CapturePort || t.Port != ControllerPort {
			continue
		}
		if !shown && due-w.now > (controllerBurst-1)*controllerIntervalNS {
			return false
		}
		shown = true
		if r := w.writeRecord(sight{capture: at, frame: i, kind: CapturedOut, port: ControllerPort, bounded: true, maxLen: maxLen, keyed: w.keys[i].Tracked()}); r != nil {
			r.sent(ControllerPort)
			r.setNote(note)
		}
	}
	if shown {
		w.controllerDue = due + controllerIntervalNS
	}
	return shown
}
