// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/flowtable"
	"weft/packet"
)

// The functions of this file are the points on a frame's way at which captures look at it, in the order
// in which a frame passes them. Without a capture that looks at every frame, a point costs one
// comparison, because the compiler inlines these functions into the stages.

// capturePoll is called before a receive queue is polled.
func (w *Worker) capturePoll() {
	if w.captures.everyFrame {
		w.beginCapture()
	}
}

// captureReceived is called after a receive queue has returned a batch of frames.
func (w *Worker) captureReceived() {
	if w.captures.everyFrame {
		w.recordReceived()
	}
}

// captureHeld is called for a held frame before actions are executed on it without a look-up.
func (w *Worker) captureHeld(h *HeldFrame, actions []flowtable.Action) {
	if w.captures.everyFrame {
		w.recordHeld(h, actions)
	}
}

// captureDrop is called for a frame that is dropped before it reaches an output.
func (w *Worker) captureDrop(f *packet.Frame, reason packet.DropReason) {
	if w.captures.everyFrame {
		w.recordDrop(f, reason)
	}
}

// captureHeldDrop is called for a held frame that is dropped while it is in its slot and in no batch.
func (w *Worker) captureHeldDrop(slot uint32, reason packet.DropReason) {
	if w.captures.everyFrame {
		w.recordHeldDrop(slot, reason)
	}
}

// captureExecuted is called after all actions of a batch, before the pending frames are sent.
func (w *Worker) captureExecuted() {
	if w.captures.everyFrame {
		w.markStage(1 + stageExecute)
	}
}

// captureSend is called for frames that are about to be sent to port p.
func (w *Worker) captureSend(p *txPort, order []uint8) {
	if w.captures.everyFrame {
		w.recordSend(p, order)
	}
}

// captureSent is called after Send of port p. "accepted" is the number of frames at the start of the list
// "order" that the port has accepted.
func (w *Worker) captureSent(p *txPort, order []uint8, accepted int) {
	if w.captures.everyFrame {
		w.recordSent(p, order, accepted)
	}
}

// captureResult is called after frame i was sent to port p, or dropped there if reason is not DropNone.
// tunnelPort is the port of the tunnel whose header the frame has; 0: none.
func (w *Worker) captureResult(p *txPort, i int, tunnelPort uint16, reason packet.DropReason) {
	if w.captures.everyFrame {
		w.recordResult(p, i, tunnelPort, reason)
	}
}

// captureEnd is called at the end of a batch. It publishes the batch's records.
func (w *Worker) captureEnd() {
	if w.captures.everyFrame || w.captures.count > 0 {
		w.finishCapture()
	}
}
