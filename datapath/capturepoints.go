// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"weft/flowtable"
	"weft/packet"
)

// Each function of this file is called at one point of a frame's way through the worker. The functions stand
// in the order of these points. If some capture must look at every frame, the function records the frame for
// the captures. Otherwise it costs one comparison, because the compiler inlines it into the caller.

// The method poll is called before a receive queue is polled.
func (c *captures) poll() {
	if c.everyFrame {
		c.beginCapture()
	}
}

// The method received is called after a receive queue has returned a batch of frames.
func (c *captures) received() {
	if c.everyFrame {
		c.recordReceived()
	}
}

// The method held is called for a frame that has waited in a slot, before actions are executed on it without
// a look-up.
func (c *captures) held(h *HeldFrame, actions []flowtable.Action) {
	if c.everyFrame {
		c.recordHeld(h, actions)
	}
}

// The method drop is called for a frame that is dropped before it reaches an output.
func (c *captures) drop(f *packet.Frame, reason packet.DropReason) {
	if c.everyFrame {
		c.recordDrop(f, reason)
	}
}

// The method heldDrop is called for a frame that is dropped while it waits in a slot and is in no batch.
func (c *captures) heldDrop(slot uint32, reason packet.DropReason) {
	if c.everyFrame {
		c.recordHeldDrop(slot, reason)
	}
}

// The method executed is called after all actions of a batch, before the pending frames are sent.
func (c *captures) executed() {
	if c.everyFrame {
		c.markStage(1 + stageExecute)
	}
}

// The method send is called for frames that are about to be sent to port p.
func (c *captures) send(p *txPort, order []uint8) {
	if c.everyFrame {
		c.recordSend(p, order)
	}
}

// The method sent is called after Send of port p. "accepted" is the number of frames at the start of the list
// "order" that the port has accepted.
func (c *captures) sent(p *txPort, order []uint8, accepted int) {
	if c.everyFrame {
		c.recordSent(p, order, accepted)
	}
}

// The method result is called after frame i was sent to port p, or dropped there if reason is not DropNone.
// tunnelPort is the port of the tunnel whose header the frame has; 0: none.
func (c *captures) result(p *txPort, i int, tunnelPort uint16, reason packet.DropReason) {
	if c.everyFrame {
		c.recordResult(p, i, tunnelPort, reason)
	}
}

// The method end is called at the end of a batch. It publishes the batch's records.
func (c *captures) end() {
	if c.everyFrame || c.count > 0 {
		c.finishCapture()
	}
}
