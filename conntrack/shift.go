package conntrack

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"weft/packet"
)

// Control connections of FTP whose ends are translated: an announcement names the
// address by which the other side knows the announcer. What is longer or shorter
// then moves the sequence numbers of all that follows in its direction, and the
// acknowledgements of the other; tracking itself follows each side in the numbers
// it uses.
//
// Bounds, beyond which an announcement goes on as it is, and nothing is expected:
// it must begin its segment, end within it and within maxCommand bytes, the whole
// segment must fit into the frame's private header, and be no fragment.

// shift is what was changed of what one side sends. Guarded by the connection's
// lock.
type shift struct {
	pos    uint32 // sequence number, as sent, of the announcement rewritten last
	before uint32 // what numbers up to pos are shifted by, modulo 2^32
	next   uint32 // first number behind all that was passed on, as sent
	acked  uint32 // highest number acknowledged, as sent
	port   uint16 // that the announcement got
	was    uint8  // length of the announcement as sent
	is     uint8  // and as passed on; 0: there is none
	seen   uint8  // 1: next and acked are known
	_      [3]byte
}

// maxShiftAge is how far behind what was passed on pos may lie, so that numbers
// compare with it. An announcement as old as that is never sent again.
const maxShiftAge = 1 << 30

// after is what numbers behind the announcement are shifted by.
func (s *shift) after() uint32 { return s.before + uint32(s.is) - uint32(s.was) }

// passed is what a sequence number as sent becomes.
func (s *shift) passed(seq uint32) uint32 {
	switch {
	case s.is == 0 || !before(s.pos, seq):
		return seq + s.before
	case !before(seq, s.pos+uint32(s.was)):
		return seq + s.after()
	}
	// Within: of a probe that is to be acknowledged once more (RFC 9293 section
	// 3.8.4), and must not lie behind what was passed on.
	return s.pos + s.before + min(seq-s.pos, uint32(s.is)-1)
}

// origin is the number as sent of a number as passed on; within stands for all
// within the announcement.
func (s *shift) origin(v, within uint32) uint32 {
	switch sent := v - s.before; {
	case s.is == 0 || !before(s.pos, sent):
		return sent
	case !before(sent, s.pos+uint32(s.is)):
		return v - s.after()
	}
	return within
}

// acknowledged is what an acknowledgement of what was passed on becomes. One of a
// part of the announcement acknowledges nothing of it, so that it is sent again.
func (s *shift) acknowledged(ack uint32) uint32 { return s.origin(ack, s.pos) }

// sacked is the same for an edge of a block of RFC 2018, which covers no part.
func (s *shift) sacked(right bool, edge uint32) uint32 {
	if right {
		return s.origin(edge, s.pos)
	}
	return s.origin(edge, s.pos+uint32(s.was))
}

// send notes that a segment goes on.
func (s *shift) send(g *segment) {
	end := g.seq + g.length
	if s.seen == 0 || g.flags&tcpSyn != 0 && s.is == 0 {
		s.next, s.acked, s.seen = end, g.seq, 1
		return
	}
	s.next = later(s.next, end)
	if s.is != 0 && s.next-s.pos > maxShiftAge {
		s.before, s.is, s.was = s.after(), 0, 0
	}
}

// rewriting is an announcement to be rewritten.
type rewriting struct {
	announced
	line    int    // offset of the line in the frame
	pos     uint32 // its sequence number
	port    uint16 // to be announced instead
	repeats bool   // it was before
}

// shift brings f, a segment in direction dir of translated control connection n of
// generation g, in line with what has been and is rewritten of the connection. It
// returns the reason for which f must not go on, and reports false if the
// connection, which was v, has changed; f is as it was then.
func (tr *Tracker) shift(b *packet.Batch, f *packet.Frame, n, g uint32, v *view, dir uint8, now uint64) (why packet.DropReason, ok bool) {
	t := tr.Table
	c := &t.conns[n]
	var sg segment
	parseTCP(b, f, &sg)
	payload := int(f.L4) + packet.TCP(f.Header()[f.L4:]).HeaderLen()
	if !b.Pullup(f, payload) {
		return packet.DropDeepHeader, true
	}
	if !t.lockConn(c, g) {
		return packet.DropNone, false
	}
	s := t.shifts[n][dir&1]
	t.unlockConn(c, g)

	var r rewriting
	rewrites, why := tr.rewrites(b, f, &s, &sg, n, v, dir, payload, &r, now)
	if why != packet.DropNone {
		return why, true
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
		if *own != s { // another worker has a segment of the same direction
			t.unlockConn(c, g)
			return packet.DropGateway, true
		}
		own.before, own.pos, own.port = own.after(), r.pos, r.port
		own.was, own.is = uint8(r.to), uint8(r.from+len(text))
	}
	seq, ack, back := own.passed(sg.seq), sg.ack, *other
	own.send(&sg)
	if sg.flags&tcpAck != 0 {
		ack = other.acknowledged(sg.ack)
		if other.seen != 0 {
			other.acked = later(other.acked, ack)
			other.next = later(other.next, ack)
		}
	}
	t.unlockConn(c, g)

	if seq != sg.seq || back.before != 0 || back.is != 0 {
		f.EditTCP(payload, func(h packet.TCP) {
			binary.BigEndian.PutUint32(h[4:], seq)
			if sg.flags&tcpAck != 0 {
				binary.BigEndian.PutUint32(h[8:], ack)
			}
			packet.SACKs(h[packet.TCPLen:], back.sacked)
		})
	}
	if rewrites {
		b.FinishChecksum(f)
		f.ReplaceTCP(payload, r.line+r.from, r.to-r.from, text) // there is room: see rewrites
	}
	return packet.DropNone, true
}

// rewrites tells whether an announcement in segment g is to be rewritten, filling
// r: a new one, for which a connection is expected from now on, or the last one
// once more, which must become what it became before. payload is the offset at
// which the segment's text begins.
func (tr *Tracker) rewrites(b *packet.Batch, f *packet.Frame, s *shift, g *segment, n uint32, v *view, dir uint8, payload int, r *rewriting, now uint64) (bool, packet.DropReason) {
	t := tr.Table
	length := uint32(f.Len() - payload)
	if length == 0 || g.flags&tcpSyn != 0 {
		return false, packet.DropNone
	}
	at := s.pos - g.seq
	if s.seen != 0 && before(s.next, g.seq) {
		return false, packet.DropGateway // what is missing may announce: in order, please
	}
	r.repeats = s.is != 0 && at < length
	if s.is != 0 && g.seq-s.pos-1 < uint32(s.was)-1 && length > 1 {
		return false, packet.DropGateway // begins within what was rewritten
	}
	if !r.repeats {
		if at = 0; s.seen != 0 && before(g.seq, s.next) {
			return false, packet.DropNone // went on as it was
		}
	}
	r.pos, r.line, r.port = g.seq+at, payload+int(at), s.port
	fits := f.Flags&packet.FrameFragment == 0 && f.Offload.GSO == packet.GSONone &&
		b.Pullup(f, f.Len())
	known, longest := false, maxText4
	if f.Header()[f.L3]>>4 == 6 {
		longest = maxText6
	}
	if fits {
		h := f.Header()
		r.announced, known = readOwn(h[r.line:min(r.line+maxCommand, len(h))], v, dir)
		known = known && f.Len()-(r.to-r.from)+longest <= f.HeaderRoom()
	}
	switch {
	case r.repeats && (!known || r.to != int(s.was)):
		return false, packet.DropGateway
	case r.repeats:
		return true, packet.DropNone
	case !known || r.from+longest > maxCommand:
		return false, packet.DropNone
	case s.is != 0 && before(s.acked, s.pos+uint32(s.was)):
		return false, packet.DropGateway // comes again once the one before has arrived
	}
	e := tr.expectationOf(v, n, dir)
	e.dstPort, e.to = r.announced.port, r.announced.port
	t.expect(&e, now)
	r.port = e.dstPort
	own := v.tuples[dir&1].tuple(v.addresses(dir)).Src
	return r.port != e.to || r.address.IsValid() && e.dst != own, packet.DropNone
}

// Bounds of what replaces address and port: |1|, an address, | and a port with |.
const (
	maxText4 = 3 + 15 + 1 + 6
	maxText6 = 3 + 39 + 1 + 6
)

// text appends what is to stand in the place of address and port.
func (r *rewriting) text(to []byte, address [2]uint64) []byte {
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
			to = append(strconv.AppendUint(to, uint64(n), 10), ',')
		}
		return to[:len(to)-1]
	}
	to = append(to, r.between)
	switch {
	case r.address.Is6():
		to = a.AppendTo(append(to, '2', r.between))
	case r.address.IsValid():
		to = a.AppendTo(append(to, '1', r.between))
	default:
		to = append(to, r.between)
	}
	return append(strconv.AppendUint(append(to, r.between), uint64(r.port), 10), r.between)
}

// appendShifts appends five words of both directions; see Save.
func appendShifts(buf []byte, shifts *[2]shift) []byte {
	le := binary.LittleEndian
	small := uint64(0)
	for i := range shifts {
		s := &shifts[i]
		buf = le.AppendUint64(buf, uint64(s.pos)<<32|uint64(s.before))
		buf = le.AppendUint64(buf, uint64(s.next)<<32|uint64(s.acked))
		small = small<<32 | uint64(s.port)<<16 | uint64(s.was)<<9 | uint64(s.is)<<1 | uint64(s.seen)
	}
	return le.AppendUint64(buf, small)
}

// readShifts reads them from words.
func readShifts(word func() uint64) (shifts [2]shift) {
	for i := range shifts {
		a, b := word(), word()
		shifts[i] = shift{pos: uint32(a >> 32), before: uint32(a), next: uint32(b >> 32), acked: uint32(b)}
	}
	small := word()
	for i := range shifts {
		v := uint32(small >> (32 * (1 - i)))
		s := &shifts[i]
		s.port, s.was, s.is, s.seen = uint16(v>>16), uint8(v>>9)&127, uint8(v>>1)&127, uint8(v)&1
	}
	return shifts
}
