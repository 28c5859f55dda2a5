// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"

	"weft/packet"
)

// This file tracks TCP as a middlebox observes it. Each side has a phase (the states of RFC 9293 section
// 3.3.2 that an observer can know) and bounds for the sequence numbers of its segments. A segment is valid if
// its receiver can accept it and if the data that it acknowledges was sent. The bounds follow van Rooij,
// "Real stateful TCP packet filtering in IP Filter" (2001).

// phase is the progress of one side.
type phase uint8

const (
	phaseNone        phase = iota // this side has sent nothing
	phaseSyn                      // this side has sent its SYN
	phaseEstablished              // this side's SYN was acknowledged
	phaseFin                      // this side has sent its FIN
	phaseDone                     // this side's FIN was acknowledged
	phaseReset                    // the connection was reset
)

// Flags of a peer.
const (
	peerScales  = 1 << iota // this side's SYN had a window scale option (RFC 7323 section 2.2)
	peerUnknown             // the bounds are unknown: the tracker has not seen the beginning, or the connection was lent (lease.go)
)

// Bits of a TCP header's flags.
const (
	tcpFin = 1 << iota
	tcpSyn
	tcpRst
	tcpPsh
	tcpAck
	tcpUrg
)

// segment is the part of a TCP segment that the tracker reads.
type segment struct {
	seq, ack uint32
	length   uint32 // length in sequence numbers: payload, SYN and FIN
	window   uint32 // as in the header
	flags    uint16
	scale    uint8 // window scale of a SYN, or noScale
}

const (
	noScale  = 0xff
	maxScale = 14 // RFC 7323 section 2.3
)

// verdict is the result of comparing a frame with the protocol state of its connection.
type verdict uint8

const (
	verdictInvalid verdict = iota
	verdictValid           // the frame belongs to the connection
	verdictIgnored         // the frame is valid, but changes no state
	verdictRestart         // the frame begins a new connection with the same ports
)

// minAckWindow is the number of bytes by which an acknowledgement may lag behind the data of the other
// side, even if the acknowledging side has never offered such a large window. It allows for one segment of
// 64 KiB.
const minAckWindow = 66000

func earlierThan(a, b uint32) bool { return int32(a-b) < 0 }

func later(a, b uint32) uint32 {
	if earlierThan(a, b) {
		return b
	}
	return a
}

// plausible reports whether a segment may have this combination of TCP flags.
func plausible(flags uint16) bool {
	switch flags & (tcpSyn | tcpFin | tcpRst | tcpAck) {
	case tcpSyn, tcpSyn | tcpAck, tcpRst, tcpRst | tcpAck, tcpFin | tcpAck, tcpAck:
		return true
	}
	return false
}

// beginsTCP reports whether a segment with these TCP flags may begin a connection.
func beginsTCP(flags uint16) bool {
	return plausible(flags) && flags&tcpRst == 0 && flags&(tcpSyn|tcpAck) != tcpSyn|tcpAck
}

// beginTCP sets peers to the state after the first segment that the tracker sees of a connection. The
// connection may have begun before. beginTCP returns false if the segment cannot be the first one.
func beginTCP(peers *[2]peer, g *segment) bool {
	if !beginsTCP(g.flags) {
		return false
	}
	if g.flags&tcpSyn != 0 {
		*peers = [2]peer{}
		sendSYN(&peers[0], g)
		return true
	}
	end := g.seq + g.length
	peers[0] = peer{end: end, maxEnd: end, maxWin: max(g.window, 1), flags: peerUnknown, phase: phaseEstablished}
	peers[1] = peer{end: g.ack, maxEnd: g.ack + g.window, maxWin: 1, flags: peerUnknown, phase: phaseEstablished}
	if g.flags&tcpFin != 0 {
		peers[0].phase = phaseFin
	}
	return true
}

// sendSYN sets s to the state after its SYN, which is segment g.
func sendSYN(s *peer, g *segment) {
	end := g.seq + g.length
	*s = peer{end: end, maxEnd: g.seq + 1, maxWin: max(g.window, 1), phase: phaseSyn}
	if g.scale != noScale {
		s.scale, s.flags = min(g.scale, maxScale), peerScales
	}
}

// trackTCP updates both sides of a connection for segment g, which s has sent to r. If liberal is true, it
// does not check sequence numbers.
func trackTCP(s, r *peer, g *segment, liberal bool) verdict {
	if !plausible(g.flags) {
		return verdictInvalid
	}
	switch {
	case g.flags&tcpRst != 0:
		return trackRST(s, r, g, liberal)
	case g.flags&(tcpSyn|tcpAck) == tcpSyn:
		return trackSYN(s, r, g)
	case g.flags&tcpSyn != 0 && s.phase <= phaseSyn:
		return trackSYNACK(s, r, g)
	}
	return trackACK(s, r, g, liberal)
}

func ended(p phase) bool { return p >= phaseDone }

func trackSYN(s, r *peer, g *segment) verdict {
	switch {
	case ended(s.phase) && ended(r.phase):
		return verdictRestart
	case s.phase == phaseNone: // simultaneous open (RFC 9293 section 3.5)
		other := *r
		sendSYN(s, g)
		agreeOnScale(s, r)
		s.maxEnd = s.end + other.maxWin
	case s.phase == phaseSyn && g.seq+g.length == s.end: // a repeated SYN
	case s.phase == phaseSyn && r.phase == phaseNone: // the sender has started again
		sendSYN(s, g)
	default:
		// The sender of this SYN has lost the connection. The peer answers with an
		// ACK, and the sender then resets the connection (RFC 9293 section 3.10.7.4,
		// RFC 5961 section 4).
		return verdictIgnored
	}
	return verdictValid
}

// agreeOnScale turns window scaling off for both sides unless both SYNs offered it.
func agreeOnScale(s, r *peer) {
	if s.flags&r.flags&peerScales == 0 {
		s.scale, r.scale = 0, 0
	}
}

func trackSYNACK(s, r *peer, g *segment) verdict {
	if r.phase == phaseNone || earlierThan(r.end, g.ack) || r.phase == phaseSyn && !acksSYN(s, r, g.ack) {
		return verdictInvalid
	}
	if s.phase == phaseNone || g.seq+g.length != s.end {
		// This is the first SYN+ACK, or another one that replaces it: a server with SYN
		// cookies (RFC 4987 section 3.6) forgets its sequence number.
		offered := r.maxWin
		sendSYN(s, g)
		agreeOnScale(s, r)
		s.maxEnd = s.end + offered
	}
	if r.phase == phaseSyn {
		r.phase = phaseEstablished
	}
	r.maxEnd = later(r.maxEnd, g.ack+max(g.window, 1)) // a window in a SYN is never scaled
	return verdictValid
}

// acksSYN reports whether ack acknowledges the SYN of peer r, perhaps without the
// data in the SYN (RFC 7413 section 4.2).
func acksSYN(s, r *peer, ack uint32) bool {
	return ack == r.end || s.phase == phaseNone && !earlierThan(ack, r.maxEnd) && earlierThan(ack, r.end)
}

// inWindow reports whether segment g is within the window of its receiver r.
func inWindow(s, r *peer, g *segment) bool {
	return !earlierThan(s.maxEnd, g.seq) && !earlierThan(g.seq+g.length, s.end-r.maxWin)
}

// acksWhatWasSent reports whether segment g acknowledges only data that r has sent. The acknowledgement may
// lag behind this data by the largest window of s, and always by minAckWindow.
func acksWhatWasSent(s, r *peer, g *segment) bool {
	return !earlierThan(r.end, g.ack) && !earlierThan(g.ack, r.end-max(s.maxWin, minAckWindow))
}

func trackRST(s, r *peer, g *segment, liberal bool) verdict {
	switch {
	case s.phase == phaseReset:
		return verdictIgnored
	case s.phase == phaseNone:
		// The reset answers a SYN (RFC 9293 section 3.10.7.3).
		if g.flags&tcpAck == 0 || !acksSYN(s, r, g.ack) && !liberal {
			return verdictInvalid
		}
	case !liberal && (s.flags|r.flags)&peerUnknown == 0 && !inWindow(s, r, g):
		return verdictInvalid
	}
	s.phase, r.phase = phaseReset, phaseReset
	return verdictValid
}

func trackACK(s, r *peer, g *segment, liberal bool) verdict {
	if s.phase == phaseNone || r.phase == phaseNone {
		return verdictInvalid // sent before the handshake
	}
	if s.phase == phaseReset {
		return verdictIgnored // the segment was sent before the other side's RST arrived
	}
	if !liberal && (s.flags|r.flags)&peerUnknown == 0 && !(inWindow(s, r, g) && acksWhatWasSent(s, r, g)) {
		return verdictInvalid
	}
	window := g.window
	if g.flags&tcpSyn == 0 {
		window <<= s.scale
	}
	end := g.seq + g.length
	if earlierThan(s.maxEnd, end) {
		// The segment exceeds the window that the tracker knows, because the
		// acknowledgement that opened the window took another path.
		r.maxWin += end - s.maxEnd
	}
	s.end = later(s.end, end)
	if g.flags&tcpFin != 0 && s.phase < phaseFin {
		s.phase = phaseFin
	}
	s.maxWin = max(s.maxWin, window)
	if edge := g.ack + window; !earlierThan(edge, r.maxEnd) {
		r.maxEnd = edge
		if window == 0 {
			r.maxEnd++ // one byte more, for a probe of a closed window (RFC 9293 section 3.8.6.1)
		}
	}
	acknowledge(r, g.ack)
	return verdictValid
}

// acknowledge advances the phase of r if an acknowledgement from the other side covers the SYN or FIN of r.
func acknowledge(r *peer, ack uint32) {
	switch r.phase {
	case phaseSyn:
		r.phase = phaseEstablished
	case phaseFin:
		if ack == r.end {
			r.phase = phaseDone
		}
	}
}

// TCPState is the state of a TCP connection (RFC 9293). It is used only for output.
type TCPState uint8

// TCP states, in the order of Open vSwitch's numbers.
const (
	stateClosed TCPState = iota
	stateListen
	stateSynSent
	stateSynRecv
	stateEstablished
	stateCloseWait
	stateFinWait1
	stateClosing
	stateLastAck
	stateFinWait2
	stateTimeWait
)

// stateOf returns the TCP state and the timeout class of a connection whose sides are
// in phases a and b.
func stateOf(a, b phase) (TCPState, Class) {
	lo, hi := min(a, b), max(a, b)
	switch {
	case hi == phaseReset:
		return stateClosed, tcpClose
	case lo == phaseDone:
		return stateTimeWait, tcpTimeWait
	case lo == phaseFin:
		return stateLastAck, tcpLastAck
	case hi == phaseDone:
		return stateCloseWait, tcpCloseWait
	case hi == phaseFin:
		return stateFinWait1, tcpFinWait
	case lo == phaseNone:
		return stateSynSent, tcpSynSent
	case lo == phaseSyn:
		return stateSynRecv, tcpSynRecv
	}
	return stateEstablished, tcpEstablished
}

// tcpFlags returns the flags FIN to URG of the TCP segment in frame f.
func tcpFlags(f *packet.Frame) uint16 { return uint16(f.Header()[int(f.L4)+13] & 0x3f) }

// parseTCP reads the TCP segment in frame f, whose fixed header is in the header
// buffer.
func parseTCP(b *packet.Batch, f *packet.Frame, g *segment) {
	l4 := f.Header()[f.L4:]
	h := (*[packet.TCPLen]byte)(l4)
	g.seq, g.ack = binary.BigEndian.Uint32(h[4:]), binary.BigEndian.Uint32(h[8:])
	word := binary.BigEndian.Uint32(h[12:])
	g.flags, g.window = uint16(word>>16)&0x3f, word&0xffff
	header := int(word>>28) * 4
	g.length = uint32(max(f.Len()-int(f.L4)-header, 0))
	g.scale = noScale
	if g.flags&tcpFin != 0 {
		g.length++
	}
	if g.flags&tcpSyn != 0 {
		g.length++
		if header > packet.TCPLen && b.Pullup(f, int(f.L4)+header) {
			g.scale = windowScale(f.Header()[int(f.L4)+packet.TCPLen : int(f.L4)+header])
		}
	}
}

// windowScale returns the value of the window scale option (RFC 7323 section 2.2), or
// noScale.
func windowScale(options []byte) uint8 {
	const scale = 3
	for option, rest := packet.TCPOption(options); option != nil; option, rest = packet.TCPOption(rest) {
		if option[0] == scale && len(option) == 3 {
			return min(option[2], maxScale)
		}
	}
	return noScale
}
