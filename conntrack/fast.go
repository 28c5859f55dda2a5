package conntrack

import "weft/packet"

// Fast takes frame i of the batch, of TCP or UDP, through the action, for the
// connection and direction that Found has told, without any further look-up: state
// and timeout are kept, and NAT rewrites the frame. ok is false, and nothing has
// changed, where what Process would say of the frame may be anything but
// established, with the mark, label and translation that belong to the
// connection's generation. The ct_state bits snat and dnat are returned.
func (tr *Tracker) Fast(b *packet.Batch, i int, ref Ref, dir uint8, req *Request, now uint64) (state uint8, ok bool) {
	t, f := tr.Table, &b.Frames[i%packet.BatchSize]
	c := &t.conns[ref.Number&uint32(len(t.conns)-1)]
	if c.generation() != ref.Generation || c.flags&(connFTP|connTFTP|connReplied) != connReplied || c.expired(now) {
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
