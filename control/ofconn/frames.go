// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"sync"

	"weft/openflow"
	"weft/openflow/ofp"
)

// This file sends the frames that flows output to the controller.

// rateLimit is a token bucket with maxPacketIns tokens a second.
type rateLimit struct {
	mu    sync.Mutex
	dueNS uint64 // time at which the bucket is full again
}

const packetInNS = 1_000_000_000 / maxPacketIns

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
	var all wantedFrames
	for _, c := range s.connections() {
		if w := c.wantsFrames(); w.wanted {
			all = wantedFrames{wanted: true, misses: all.misses || w.misses, expired: all.expired || w.expired}
		}
	}
	if all != s.framed {
		s.framed = all
		s.setup.Frames(all.wanted, all.misses, all.expired)
	}
}

// wantedFrames says which frames a peer gets: any at all (wanted), also frames that match no
// flow (misses), also frames whose TTL has expired (expired).
type wantedFrames struct{ wanted, misses, expired bool }

// wantsFrames returns the frames that the peer wants. A peer that may only read gets
// none, because frames show payloads.
func (c *Conn) wantsFrames() wantedFrames {
	c.mu.Lock()
	defer c.mu.Unlock()
	reasons := c.async.PacketIn[0] | c.async.PacketIn[1]
	return wantedFrames{
		wanted:  c.ready && !c.ended && c.role == Write && c.wantsEvents() && reasons != 0,
		misses:  c.version == openflow.Version10,
		expired: reasons&(1<<ofp.ReasonInvalidTTL) != 0,
	}
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
