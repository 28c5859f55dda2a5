package conntrack

import (
	"encoding/binary"

	"weft/packet"
)

// Fast takes a frame of TCP or UDP through the action for which ref and dir are
// known from an earlier frame, without a look-up: state and timeout are kept, and
// NAT rewrites the frame. ok is false, and nothing has changed, where the frame
// is not of that connection and direction, or what Process would say of it may be
// anything but what it said when it returned ref: established, with the same
// mark, label and translation. The ct_state bits snat and dnat are returned.
func (tr *Tracker) Fast(b *packet.Batch, f *packet.Frame, ref Ref, dir uint8, req *Request, now uint64) (state uint8, ok bool) {
	t := tr.Table
	c := &t.conns[ref.Number&uint32(len(t.conns)-1)]
	if c.generation() != ref.Generation || c.flags&(connFTP|connTFTP) != 0 || c.expired(now) || !t.carries(c, ref.Number, f, dir, req.Zone) {
		return 0, false
	}
	class := UDPMultiple
	if f.Proto == packet.ProtoTCP {
		class = TCPEstablished
		var g segment
		parseTCP(b, f, &g)
		if g.flags&(tcpSyn|tcpFin|tcpRst|tcpAck) != tcpAck || !t.lockConn(c, ref.Generation) {
			return 0, false
		}
		s, r := &c.peers[dir&1], &c.peers[1-dir&1]
		v := verdictInvalid
		if s.phase == phaseEstablished && r.phase == phaseEstablished {
			v = trackACK(s, r, &g, t.Liberal())
		}
		t.unlockConn(c, ref.Generation)
		if v != verdictValid {
			return 0, false
		}
	}
	t.refresh(c, class, now)
	if req.NAT.Kind != NATNone && c.flags&connTranslated != 0 {
		p := probe{kind: kindFlow}
		state = t.translate(b, f, &p, ref.Number&uint32(len(t.conns)-1), dir)
	}
	return state, true
}

// Touch fetches the line of ref's connection that Fast begins with.
func (tr *Tracker) Touch(ref Ref) uint64 {
	return tr.conns[ref.Number&uint32(len(tr.conns)-1)].meta.Load()
}

// carries tells whether f, of TCP or UDP and whole, has c's tuple of a direction.
func (t *Table) carries(c *conn, n uint32, f *packet.Frame, dir uint8, zone uint16) bool {
	if f.L4 == 0 || f.Flags&packet.FrameFragment != 0 || f.Proto != packet.ProtoTCP && f.Proto != packet.ProtoUDP {
		return false
	}
	h, w := f.Header(), &c.tuples[dir&1]
	ports := uint64(binary.BigEndian.Uint32(h[f.L4:]))<<32 | uint64(zone)<<16 | uint64(f.Proto)<<8
	ip := h[f.L3:]
	if ip[0]>>4 == 4 {
		return w.b == ports|familyIPv4 && w.a == binary.BigEndian.Uint64(ip[12:])
	}
	if w.b != ports|familyIPv6 {
		return false
	}
	long, address := t.longOf(n&uint32(len(t.conns)-1), dir&1), (*[32]byte)(ip[8:])
	diff := uint64(0)
	for i := range long {
		diff |= long[i] ^ binary.BigEndian.Uint64(address[8*i:])
	}
	return diff == 0
}
