package datapath

const (
	// ControllerPort is the port under which captures see what flows send to the
	// controller: OpenFlow's number for it.
	ControllerPort = 0xfffd
	// controllerIntervalNS is the time between two frames that a worker shows, in
	// the long run, controllerBurst the number it shows at once. What comes faster
	// is not shown.
	controllerIntervalNS = 1_000_000
	controllerBurst      = 100
)

// toController shows the first maxLen bytes of frame i, as it is now, to those who capture ControllerPort;
// it reports false if nobody does or the rate is exceeded.
func (w *Worker) toController(i int, maxLen uint32) (shown bool) {
	if !w.taps.on {
		return false
	}
	due := max(w.controllerDue, w.now)
	for at := range w.taps.taps {
		t := &w.taps.taps[at]
		if t.Kind != TapPort || t.Port != ControllerPort {
			continue
		}
		if !shown && due-w.now > (controllerBurst-1)*controllerIntervalNS {
			return false
		}
		shown = true
		if r := w.tapWrite(sight{tap: at, frame: i, kind: CaptureOut, port: ControllerPort, bounded: true, maxLen: maxLen}); r != nil {
			r.sent(ControllerPort)
		}
	}
	if shown {
		w.controllerDue = due + controllerIntervalNS
	}
	return shown
}
