// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"weft/packet"
)

// A held frame that the control process takes for itself leaves its slot and counts as no drop. Captures
// of its port show it.
func TestConsumedFrames(t *testing.T) {
	r := twoPorts(t)
	r.command(AppendCapture(nil, 0, &Capture{Kind: CapturePort, Port: 1}))
	r.command(AppendCapture(nil, 1, &Capture{Kind: CaptureDrops}))
	r.turn()
	frame := ethernet(0xa, 300, 0)
	r.inject(1, frame)
	r.turn()
	ref := r.mustUpcall(UpMiss).Arg
	if !r.sh.Waits(ref) || r.sh.Waits(ref+1<<heldSlotBits) || r.sh.Waits(1<<heldSlotBits-1) {
		t.Error("Waits is wrong about a held frame")
	}
	r.command(AppendDropHeld(nil, ref, packet.Consumed))
	r.turn()
	if r.sh.Waits(ref) {
		t.Error("the frame is held still")
	}
	r.equal("free slots", uint64(len(r.w.held.free)), uint64(testSizes.Held))
	r.equal("received", r.sh.Ports[1].RxPackets, 1)
	r.drops(nil)
	captured := r.captures()
	if len(captured) != 1 || captured[0].Capture != 0 || captured[0].Verdict != VerdictSent || len(captured[0].Outputs) != 1 || captured[0].Outputs[0] != ControllerPort || captured[0].Len != len(frame) {
		t.Errorf("%+v", captured)
	}
	r.command(AppendDropHeld(nil, ref, packet.Consumed)) // a second answer, which comes too late
	r.turn()
	r.equal("refused", r.sh.Counters.CommandsRefused, 1)
}
