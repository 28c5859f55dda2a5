// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"weft/packet"
)

// This file rewrites announcements (PORT, EPRT, reply 227 or 229) on FTP control connections with
// NAT, because they must name the translated address. If the length of the text changes, all later
// sequence numbers of this direction shift, and so do the acknowledgements of the other direction. The
// tracking of TCP uses the sequence numbers as each sender sent them.
//
// An announcement is rewritten only if it begins its segment and ends within the segment and within
// maxCommand bytes. The segment must be unfragmented and fit into the frame's header buffer. Any other
// announcement passes unchanged, and no expectation (an entry for the announced connection) is created.

// shift holds the changes to the sequence numbers of one side's segments. Numbers "as sent" are those in the
// sender's segments, numbers "as forwarded" are those that its peer sees. The connection's lock guards it.
type shift struct {
	pos         uint32 // sequence number of the last rewritten announcement, as sent
	shiftBefore uint32 // shift of the sequence numbers up to pos
	next        uint32 // sequence number after all forwarded data, as sent
	acked       uint32 // highest sequence number acknowledged, as sent
	port        uint16 // port in the rewritten announcement
	oldLength   uint8  // length of the announcement as sent
	newLength   uint8  // length of the announcement as forwarded; 0: none was rewritten
	valid       uint8  // 1: next and acked are valid
	_           [3]byte
}

// maxShiftAge is the number of bytes after an announcement at which the method send forgets it. No sender
// repeats text that is so old. The value is far below 2^31, the distance up to which 32-bit sequence
// numbers can be compared.
const maxShiftAge = 1 << 30

// shiftAfter returns the shift of the sequence numbers after the announcement.
func (s *shift) shiftAfter() uint32 { return s.shiftBefore + uint32(s.newLength) - uint32(s.oldLength) }

// passed converts a sequence number of the sender to the number in the forwarded segment.
func (s *shift) passed(seq uint32) uint32 {
	switch {
	case s.newLength == 0 || !earlierThan(s.pos, seq):
		return seq + s.shiftBefore
	case !earlierThan(seq, s.pos+uint32(s.oldLength)):
		return seq + s.shiftAfter()
	}
	// seq is within the announcement, as in a keep-alive probe (RFC 9293 section 3.8.4). The result must be
	// within the rewritten announcement, so that the peer acknowledges the probe again.
	return s.pos + s.shiftBefore + min(seq-s.pos, uint32(s.newLength)-1)
}

// origin converts v, a sequence number in a forwarded segment, back to the number that the sender used. A
// number within the rewritten announcement has no counterpart; origin then returns fallback.
func (s *shift) origin(v, fallback uint32) uint32 {
	switch sent := v - s.shiftBefore; {
	case s.newLength == 0 || !earlierThan(s.pos, sent):
		return sent
	case !earlierThan(sent, s.pos+uint32(s.newLength)):
		return v - s.shiftAfter()
	}
	return fallback
}

// acknowledged converts an acknowledgement of the peer to the sequence numbers that the sender used. If ack
// covers only a part of the rewritten announcement, the result covers nothing of the original one, so that
// the sender repeats the announcement.
func (s *shift) acknowledged(ack uint32) uint32 { return s.origin(ack, s.pos) }

// sacked does the same as acknowledged for one edge of a SACK block (RFC 2018). wantRight is true for the
// right edge.
func (s *shift) sacked(wantRight bool, edge uint32) uint32 {
	if wantRight {
		return s.origin(edge, s.pos)
	}
	return s.origin(edge, s.pos+uint32(s.oldLength))
}

// send updates s for a segment that is forwarded from the side to which s belongs.
func (s *shift) send(g *segment) {
	end := g.seq + g.length
	if s.valid == 0 || g.flags&tcpSyn != 0 && s.newLength == 0 {
		s.next, s.acked, s.valid = end, g.seq, 1
		return
	}
	s.next = later(s.next, end)
	if s.newLength != 0 && s.next-s.pos > maxShiftAge {
		s.shiftBefore, s.newLength, s.oldLength = s.shiftAfter(), 0, 0
	}
}

// rewriting describes a segment of an FTP control connection, and the announcement in it that must be
// rewritten, if any.
type rewriting struct {
	segment        // as the sender sent it
	shift   shift  // of the segment's direction
	payload int    // offset of the segment's text in the frame
	n       uint32 // number of the connection
	v       *view  // copy of the connection
	dir     uint8  // direction of the segment
	announced
	line    int    // offset of the line in the frame
	pos     uint32 // sequence number of the line
	port    uint16 // port to announce instead
	repeats bool   // the announcement is a repeated one, which was rewritten before
}

// shift rewrites frame x, a segment of FTP control connection n, which has NAT: its sequence numbers and
// an announcement in it. v is a copy of the connection in generation g. If the caller must drop the frame,
// shift returns the reason. If the connection has changed in the meantime, shift returns false and leaves
// the frame unchanged.
func (tr *Tracker) shift(x *trackedFrame, n, g uint32, v *view) (reason packet.DropReason, ok bool) {
	t, dir := tr.Table, x.meta.Dir
	c := &t.conns[n]
	r := rewriting{n: n, v: v, dir: dir}
	parseTCP(x.batch, x.frame, &r.segment)
	sg := &r.segment
	payload := int(x.frame.L4) + packet.TCP(x.frame.Header()[x.frame.L4:]).HeaderLen()
	if r.payload = payload; !x.batch.Pullup(x.frame, payload) {
		return packet.DropDeepHeader, true
	}
	if !t.lockConn(c, g) {
		return packet.DropNone, false
	}
	r.shift = t.shifts[n][dir&1]
	t.unlockConn(c, g)

	rewrites, reason := tr.rewrites(x, &r)
	if reason != packet.DropNone {
		return reason, true
	}
	var space [maxCommand]byte
	text := space[:0]
	if rewrites {
		text = r.text(text, v.tuples[1-dir&1].tuple(v.addresses(1-dir&1)).Dst)
	}
	if !t.lockConn(c, g) {
		return packet.DropNone, false
	}
	own, other := &t.shifts[n][dir&1], &t.shifts[n][1-dir&1]
	if rewrites && !r.repeats {
		if *own != r.shift { // another worker has forwarded a segment in the meantime
			t.unlockConn(c, g)
			return packet.DropGateway, true
		}
		own.shiftBefore, own.pos, own.port = own.shiftAfter(), r.pos, r.port
		own.oldLength, own.newLength = uint8(r.end), uint8(r.start+len(text))
	}
	seq, ack, back := own.passed(sg.seq), sg.ack, *other
	own.send(sg)
	if sg.flags&tcpAck != 0 {
		ack = other.acknowledged(sg.ack)
		if other.valid != 0 {
			other.acked = later(other.acked, ack)
			other.next = later(other.next, ack)
		}
	}
	t.unlockConn(c, g)

	if seq != sg.seq || back.shiftBefore != 0 || back.newLength != 0 {
		x.frame.EditTCP(payload, func(h packet.TCP) {
			binary.BigEndian.PutUint32(h[4:], seq)
			if sg.flags&tcpAck != 0 {
				binary.BigEndian.PutUint32(h[8:], ack)
			}
			packet.SACKs(h[packet.TCPLen:], back.sacked)
		})
	}
	if rewrites {
		x.batch.FinishChecksum(x.frame)
		x.frame.ReplaceTCP(payload, r.line+r.start, r.end-r.start, text) // the text fits, because the method rewrites has checked it
	}
	return packet.DropNone, true
}

// rewrites reports whether the segment of r has an announcement that must be rewritten, and describes the
// announcement in r. For a new announcement it adds an expectation (an entry for the announced connection).
// A repeated one must be rewritten as before. If the caller must drop the segment, rewrites returns the
// reason.
func (tr *Tracker) rewrites(x *trackedFrame, r *rewriting) (bool, packet.DropReason) {
	f, s := x.frame, &r.shift
	length := uint32(f.Len() - r.payload)
	if length == 0 || r.flags&tcpSyn != 0 {
		return false, packet.DropNone
	}
	at := s.pos - r.seq
	if s.valid != 0 && earlierThan(s.next, r.seq) {
		// An earlier segment is missing. It may have an announcement, which would change this one's shift.
		return false, packet.DropGateway
	}
	r.repeats = s.newLength != 0 && at < length
	if s.newLength != 0 && r.seq-s.pos-1 < uint32(s.oldLength)-1 && length > 1 {
		return false, packet.DropGateway // the segment begins in the middle of the rewritten announcement
	}
	if !r.repeats {
		if at = 0; s.valid != 0 && earlierThan(r.seq, s.next) {
			return false, packet.DropNone // the segment repeats text that was forwarded unchanged
		}
	}
	r.pos, r.line, r.port = r.seq+at, r.payload+int(at), s.port
	fits := f.Flags&packet.FrameFragment == 0 && f.Offload.GSO == packet.GSONone &&
		x.batch.Pullup(f, f.Len())
	known, longest := false, maxText4
	if f.Header()[f.L3]>>4 == 6 {
		longest = maxText6
	}
	if fits {
		h := f.Header()
		r.announced, known = readOwn(h[r.line:min(r.line+maxCommand, len(h))], r.v, r.dir)
		known = known && f.Len()-(r.end-r.start)+longest <= f.HeaderRoom()
	}
	switch {
	case r.repeats && (!known || r.end != int(s.oldLength)):
		return false, packet.DropGateway
	case r.repeats:
		return true, packet.DropNone
	case !known || r.start+longest > maxCommand:
		return false, packet.DropNone
	case s.newLength != 0 && earlierThan(s.acked, s.pos+uint32(s.oldLength)):
		// Two announcements are in flight: the sender must repeat the second one later.
		return false, packet.DropGateway
	}
	e := tr.expectationOf(r.v, r.n, r.dir)
	e.dstPort, e.announced = r.announced.port, r.announced.port
	if !tr.expect(&e, x.now) {
		return false, packet.DropGateway // all tried ports are taken
	}
	r.port = e.dstPort
	own := r.v.tuples[r.dir&1].tuple(r.v.addresses(r.dir)).Src
	return r.port != e.announced || r.address.IsValid() && e.dst != own, packet.DropNone
}

// Greatest lengths in bytes of the rewritten text: "|1|" or "|2|", an address, "|", a port and "|".
const (
	maxText4 = 3 + 15 + 1 + 6
	maxText6 = 3 + 39 + 1 + 6
)

// text appends to dst the text that replaces line[start:end] of the announcement: address and port in the
// announcement's own form.
func (r *rewriting) text(dst []byte, address [2]uint64) []byte {
	var a netip.Addr
	if r.address.Is6() {
		var v [16]byte
		binary.BigEndian.PutUint64(v[:], address[0])
		binary.BigEndian.PutUint64(v[8:], address[1])
		a = netip.AddrFrom16(v)
	} else {
		a = netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(address[1]))))
	}
	if r.between == 0 {
		v := a.As4()
		for _, n := range [6]byte{v[0], v[1], v[2], v[3], byte(r.port >> 8), byte(r.port)} {
			dst = append(strconv.AppendUint(dst, uint64(n), 10), ',')
		}
		return dst[:len(dst)-1]
	}
	dst = append(dst, r.between)
	switch {
	case r.address.Is6():
		dst = a.AppendTo(append(dst, '2', r.between))
	case r.address.IsValid():
		dst = a.AppendTo(append(dst, '1', r.between))
	default:
		dst = append(dst, r.between)
	}
	return append(strconv.AppendUint(append(dst, r.between), uint64(r.port), 10), r.between)
}

// appendShifts appends the shifts of both directions of a connection to buf, as five words of 64 bits. Save
// writes them.
func appendShifts(buf []byte, shifts *[2]shift) []byte {
	le := binary.LittleEndian
	small := uint64(0)
	for i := range shifts {
		s := &shifts[i]
		buf = le.AppendUint64(buf, uint64(s.pos)<<32|uint64(s.shiftBefore))
		buf = le.AppendUint64(buf, uint64(s.next)<<32|uint64(s.acked))
		small = small<<32 | uint64(s.port)<<16 | uint64(s.oldLength)<<9 | uint64(s.newLength)<<1 | uint64(s.valid)
	}
	return le.AppendUint64(buf, small)
}

// readShifts is the inverse of appendShifts. Each call of word returns the next 64-bit word of the saved
// connection.
func readShifts(word func() uint64) (shifts [2]shift) {
	for i := range shifts {
		a, b := word(), word()
		shifts[i] = shift{pos: uint32(a >> 32), shiftBefore: uint32(a), next: uint32(b >> 32), acked: uint32(b)}
	}
	small := word()
	for i := range shifts {
		v := uint32(small >> (32 * (1 - i)))
		s := &shifts[i]
		s.port, s.oldLength, s.newLength, s.valid = uint16(v>>16), uint8(v>>9)&127, uint8(v>>1)&127, uint8(v)&1
	}
	return shifts
}
