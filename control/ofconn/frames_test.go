// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"testing"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
)

// A port whose frames use up the shared rate takes nothing from the reserve of another port.
func TestReserveOfFrames(t *testing.T) {
	const now = 1 << 50
	var r rateLimit
	taken := func(from uint32, frames int) (n int) {
		for range frames {
			if ok, _ := r.take(from, now); ok {
				n++
			}
		}
		return n
	}
	if n := taken(1, 2*packetInBurst); n != packetInBurst+packetInReserve {
		t.Errorf("the first port sends %d frames, want the burst of %d and its reserve of %d", n, packetInBurst, packetInReserve)
	}
	if n := taken(2, 2*packetInReserve); n != packetInReserve {
		t.Errorf("the second port sends %d frames, want %d", n, packetInReserve)
	}
}

// The frames of one port fill the queue of a controller that does not read. The queue still
// accepts a few frames of another port, and events.
func TestFramesLeaveRoom(t *testing.T) {
	r := newRig(t)
	p := r.connect(openflow.Version13)
	p.write(ofptest.Message(p.v, 9, 1, uint16(0), uint16(128))) // set_config
	p.barrier()
	var c *Conn
	for _, c = range r.service.connections() {
	}
	c.showing.Lock() // the goroutine that sends stops
	defer c.showing.Unlock()
	frame := ofp.PacketIn{Frame: make([]byte, 60<<10), Total: 60 << 10, Reason: ofp.ReasonAction}
	for range 2 * maxEventBytes / len(frame.Frame) {
		c.packetIn(&frame, 0, false)
	}
	full, dropped := c.queued(), r.service.Counts().Dropped.Load()
	if full > maxFrameBytes || dropped == 0 {
		t.Fatalf("%d bytes of frames are queued and %d frames dropped, want at most %d, and some dropped", full, dropped, maxFrameBytes)
	}
	c.packetIn(&frame, 0, true)
	if c.queued() <= full {
		t.Error("a frame within its port's reserve is dropped")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.post(make([]byte, maxReservedBytes-c.bytes), eventChange)
	if c.post(make([]byte, 100), eventChange); c.ended || c.bytes <= maxReservedBytes {
		t.Errorf("events end the connection at %d bytes", c.bytes)
	}
}
