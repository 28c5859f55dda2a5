// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"sync"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/port"
)

// This file sends controllers the frames that flows output to them.

const (
	packetInNS = 1_000_000_000 / maxPacketIns
	// Each port has a token bucket of its own, its reserve, which frames from other ports cannot use
	// up. The reserve holds packetInReserve tokens and gets a token every reserveNS. The reserves of
	// all ports together get maxPacketIns tokens a second, so the controllers may get twice
	// maxPacketIns frames a second.
	reserveNS       = packetInNS * port.MaxPorts
	packetInReserve = 8
)

// rateLimit limits the frames to controllers by token buckets. A shared bucket gets maxPacketIns
// tokens a second, for frames from any port. Each port also has a reserve: a bucket for its own
// frames.
type rateLimit struct {
	mu    sync.Mutex
	allNS uint64                // state of the shared bucket as a time, see port.TakeToken
	ownNS [port.MaxPorts]uint64 // state of each port's reserve as a time, by the port's number in the data path
}

// take takes a token for a frame that arrived on port "from". It tries the port's reserve first, and
// then the shared bucket. The result "reserved" is true if the token is from the reserve. ok is
// false if both buckets are empty.
func (r *rateLimit) take(from uint32, nowNS uint64) (ok, reserved bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own := &r.ownNS[from%port.MaxPorts]; port.TakeToken(own, nowNS, reserveNS, packetInReserve) {
		return true, true
	}
	return port.TakeToken(&r.allNS, nowNS, packetInNS, packetInBurst), false
}

// followFrames makes the workers send frames for controllers if a connection wants them, and
// stops them if none does. The caller holds no lock, because the change waits for the workers.
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

// wantedFrames tells which frames a peer gets. If wanted is false, it gets none. misses adds the
// frames that match no flow, and expired adds the frames whose TTL has expired.
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

// SendPacketIn sends a frame to the connections that want it. "from" is the datapath number of the
// port on which the frame arrived. id is the controller ID in the action of the flow; the default is
// 0.
func (s *Service) SendPacketIn(p *ofp.PacketIn, from uint32, id uint16) {
	ok, reserved := s.rate.take(from, nowNS())
	if !ok {
		s.counts.Dropped.Add(1)
		return
	}
	for _, c := range s.connections() {
		c.packetIn(p, id, reserved)
	}
}

func (c *Conn) packetIn(p *ofp.PacketIn, id uint16, reserved bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role < Write || c.id != id || !c.accepts(c.async.PacketIn, ofp.PacketInReason(c.version, p.Reason)) {
		return
	}
	if p.Cookie == ^uint64(0) && p.Reason == ofp.ReasonNoMatch { // no flow has sent the frame
		if c.version != openflow.Version10 {
			return
		}
		mine := *p
		mine.Frame = p.Frame[:min(len(p.Frame), int(c.missLen))]
		p = &mine
	}
	c.service.counts.PacketIns.Add(1)
	kind := eventFrame
	if reserved {
		kind = eventReserved
	}
	c.post(ofp.AppendPacketIn(nil, c.version, c.format, p), kind)
}
