// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"

	"weft/packet"
)

// This file tracks SCTP as a middlebox observes it (RFC 9260). The tracker checks verification tags, and
// derives the state of an association from the first chunk of each packet. The field peer.end is the
// verification tag in the packets that this side sends; 0: not known yet.

// Chunk types, RFC 9260 section 3.2.
const (
	chunkInit             = 1
	chunkInitAck          = 2
	chunkAbort            = 6
	chunkShutdown         = 7
	chunkShutdownAck      = 8
	chunkCookieEcho       = 10
	chunkCookieAck        = 11
	chunkShutdownComplete = 14
)

// chunk is the part of an SCTP packet that the tracker reads.
type chunk struct {
	tag     uint32 // verification tag
	initTag uint32 // initiate tag of INIT and INIT ACK
	kind    uint8  // type of the first chunk
	noTag   bool   // the T bit is set, so the verification tag is the one that the other side sends
}

// parseSCTP reads the common header and the first chunk of the SCTP packet in frame f. It returns false if
// the header of this chunk is incomplete, or if it is an INIT or INIT ACK without an initiate tag.
func parseSCTP(b *packet.Batch, f *packet.Frame, c *chunk) bool {
	off := int(f.L4)
	if !b.Pullup(f, off+packet.SCTPLen+4) {
		return false
	}
	h := f.Header()[off:]
	*c = chunk{tag: binary.BigEndian.Uint32(h[4:]), kind: h[12], noTag: h[13]&1 != 0}
	if c.kind == chunkInit || c.kind == chunkInitAck {
		if !b.Pullup(f, off+packet.SCTPLen+8) {
			return false
		}
		c.initTag = binary.BigEndian.Uint32(f.Header()[off+16:])
		return c.initTag != 0 // section 3.3.2
	}
	return true
}

// beginSCTP sets peers to the state after the first packet that the tracker sees of an association. The
// association may have begun before. beginSCTP returns false if the packet cannot be the first one.
func beginSCTP(peers *[2]peer, c *chunk) bool {
	*peers = [2]peer{}
	switch c.kind {
	case chunkInit:
		if c.tag != 0 { // section 8.5.1
			return false
		}
		peers[1].end = c.initTag
		peers[0].phase = phaseSyn
		return true
	case chunkInitAck, chunkAbort, chunkShutdownComplete, chunkCookieAck:
		return false
	}
	peers[0] = peer{end: c.tag, phase: phaseEstablished}
	peers[1].phase = phaseEstablished
	return true
}

// trackSCTP updates both sides of an association for a packet with the first chunk c, which s has sent to r.
func trackSCTP(s, r *peer, c *chunk) verdict {
	if c.kind == chunkInit {
		switch {
		case c.tag != 0:
			return verdictInvalid
		case ended(s.phase) && ended(r.phase):
			return verdictRestart
		case r.phase < phaseEstablished:
			r.end, s.phase = c.initTag, max(s.phase, phaseSyn)
		}
		return verdictValid // valid: the endpoints themselves decide about it (RFC 9260 section 5.2.2)
	}
	if !tagFits(s, r, c) {
		return verdictInvalid
	}
	switch c.kind {
	case chunkInitAck:
		if r.phase == phaseNone {
			return verdictInvalid
		}
		if r.phase == phaseSyn {
			r.end, s.phase = c.initTag, phaseSyn
		}
	case chunkCookieEcho:
		s.phase = max(s.phase, phaseEstablished)
	case chunkCookieAck:
		if r.phase < phaseEstablished {
			return verdictInvalid
		}
		s.phase = max(s.phase, phaseEstablished)
	case chunkShutdown:
		s.phase = max(s.phase, phaseFin)
	case chunkShutdownAck:
		s.phase, r.phase = max(s.phase, phaseFin), max(r.phase, phaseFin)
	case chunkShutdownComplete, chunkAbort:
		s.phase, r.phase = phaseDone, phaseDone
	default:
		if r.phase < phaseSyn {
			return verdictInvalid
		}
	}
	return verdictValid
}

// tagFits reports whether the verification tag of a packet from s to r is right (RFC 9260 section 8.5). If
// the tag of s is not known yet, tagFits learns it from the packet.
func tagFits(s, r *peer, c *chunk) bool {
	if c.noTag && (c.kind == chunkAbort || c.kind == chunkShutdownComplete) && c.tag == r.end {
		return true
	}
	if s.end == 0 && s.phase >= phaseEstablished {
		s.end = c.tag
	}
	return c.tag == s.end
}

func classOfSCTP(a, b phase) Class {
	switch lo, hi := min(a, b), max(a, b); {
	case hi >= phaseFin:
		return sctpShutdown
	case lo >= phaseEstablished:
		return sctpEstablished
	}
	return sctpInit
}
