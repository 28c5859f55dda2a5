// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"sync"

	"weft/openflow"
	"weft/openflow/ofp"
)

// This file sends the frames that flows output to the controller.

// rateLimit is a token bucket with MaxPacketIns tokens a second.
type rateLimit struct {
	mu    sync.Mutex
	dueNS uint64 // time at which the bucket is full again
}

const packetInNS = 1_000_000_000 / MaxPacketIns

// take takes one token at time nowNS. It returns false if the bucket is empty.
func (r *rateLimit) take(nowNS uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	due := max(r.dueNS, nowNS)
	if due-nowNS > (packetInBurst-1)*packetInNS {
		return false
	}
	r.dueNS = due + packetInNS
	return true
}

// followFrames starts the frames for controllers if a connection wants them, and stops
// them if none does. The caller holds no lock, because the start waits for the workers.
func (s *Service) followFrames() {
	if s.setup.Frames == nil {
		return
	}
	s.framing.Lock()
	defer s.framing.Unlock()
	wanted, misses := false, false
	for _, c := range s.connections() {
		if frames, old := c.wantsFrames(); frames {
			wanted, misses = true, misses || old
		}
	}
	if wanted != s.framed || misses != s.missed {
		s.framed, s.missed = wanted, misses
		s.setup.Frames(wanted, misses)
	}
}

// wantsFrames reports whether the peer gets frames (wanted). A peer that may only read
// does not get them, because frames show payloads. old is true for a connection of
// OpenFlow 1.0.
func (c *Conn) wantsFrames() (wanted, old bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready && !c.ended && c.role == Write && c.wantsEvents() && (c.async.PacketIn[0]|c.async.PacketIn[1]) != 0,
		c.version == openflow.Version10
}

// SendPacketIn sends a frame to the connections that want it. id is the number of the
// controller that the flow names; 0 is the default.
func (s *Service) SendPacketIn(p *ofp.PacketIn, id uint16) {
	if !s.rate.take(nowNS()) {
		s.counts.Dropped.Add(1)
		return
	}
	for _, c := range s.connections() {
		c.packetIn(p, id)
	}
}

func (c *Conn) packetIn(p *ofp.PacketIn, id uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role < Write || c.id != id || !c.accepts(c.async.PacketIn, ofp.PacketInReason(c.version, p.Reason)) {
		return
	}
	if p.Cookie == ^uint64(0) && p.Reason == ofp.ReasonNoMatch { // no flow has sent it
		if c.version != openflow.Version10 {
			return
		}
		mine := *p
		mine.Frame = p.Frame[:min(len(p.Frame), int(c.missLen))]
		p = &mine
	}
	c.service.counts.PacketIns.Add(1)
	c.post(ofp.AppendPacketIn(nil, c.version, c.format, p), true)
}
