// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/flowtable"
	"weft/packet"
)

// The points on a frame's way at which captures look, in the order in which a frame passes
// them. Without a capture that looks at every frame, a point costs one comparison: these
// functions are inlined where the stages call them.

// capturePoll is the point before a receive queue is polled.
func (w *Worker) capturePoll() {
	if w.captures.everyFrame {
		w.beginCapture()
	}
}

// captureReceived is the point of the frames that a queue has received.
func (w *Worker) captureReceived() {
	if w.captures.everyFrame {
		w.recordReceived()
	}
}

// captureHeld is the point of a held frame whose actions have come from the control
// process.
func (w *Worker) captureHeld(h *HeldFrame, actions []flowtable.Action) {
	if w.captures.everyFrame {
		w.recordHeld(h, actions)
	}
}

// captureDrop is the point of a frame that is dropped before it reaches an output.
func (w *Worker) captureDrop(f *packet.Frame, reason packet.DropReason) {
	if w.captures.everyFrame {
		w.recordDrop(f, reason)
	}
}

// captureHeldDrop is the point of a held frame that is dropped between two batches.
func (w *Worker) captureHeldDrop(slot uint32, reason packet.DropReason) {
	if w.captures.everyFrame {
		w.recordHeldDrop(slot, reason)
	}
}

// captureExecuted is the point at the end of all actions of a batch.
func (w *Worker) captureExecuted() {
	if w.captures.everyFrame {
		w.markStage(1 + stageExecute)
	}
}

// captureSend is the point of frames that are about to be sent to port p.
func (w *Worker) captureSend(p *txPort, order []uint8) {
	if w.captures.everyFrame {
		w.recordSend(p, order)
	}
}

// captureSent is the point of frames of which port p has accepted the first ones.
func (w *Worker) captureSent(p *txPort, order []uint8, accepted int) {
	if w.captures.everyFrame {
		w.recordSent(p, order, accepted)
	}
}

// captureResult is the point of frame i after it was sent to port p, or dropped there for a
// reason. tunnelPort is the number of the frame's tunnel port; 0: none.
func (w *Worker) captureResult(p *txPort, i int, tunnelPort uint16, reason packet.DropReason) {
	if w.captures.everyFrame {
		w.recordResult(p, i, tunnelPort, reason)
	}
}

// captureEnd is the point at the end of a batch.
func (w *Worker) captureEnd() {
	if w.captures.everyFrame || w.captures.count > 0 {
		w.finishCapture()
	}
}
