package conntrack

import (
	"math/bits"

	"weft/packet"
)

// Fast takes frame i of the batch, of TCP or UDP and settled, through the action
// without any further look-up: state and timeout are kept, and the frame is rewritten
// if the action translates. ok is false, and nothing has changed, where what Process would say of the
// frame may be anything but established, with the mark, label and translation that
// belong to the connection's generation as Settle has told it. The ct_state bits snat
// and dnat are returned.
func (tr *Tracker) Fast(b *packet.Batch, i int, translates bool, now uint64) (state uint8, ok bool) {
	i %= packet.BatchSize
	t, f, dir := tr.Table, &b.Frames[i], tr.dirs[i]&1
	n := tr.numbers[i] & uint32(len(t.conns)-1)
	c := &t.conns[n]
	if c.generation() != tr.generations[i] || c.flags&(connFTP|connTFTP|connReplied) != connReplied || c.expired(now) {
		return 0, false
	}
	class := UDPMultiple
	if f.Proto == packet.ProtoTCP {
		if class = TCPEstablished; !tr.fastTCP(b, f, c, tr.generations[i], dir) {
			return 0, false
		}
	}
	t.refresh(c, class, now)
	if c.flags&connTranslated == 0 || !translates {
		return 0, true
	}
	if w := &c.tuples[1-dir]; !w.ipv6() && f.SetIPv4Ends(bits.RotateLeft64(w.a, 32), bits.RotateLeft32(uint32(w.b>>32), 16)) {
		return translated(c.flags, dir), true
	}
	return t.translate(b, f, &probe{kind: kindFlow}, n, dir), true
}

// fastTCP follows a segment that leaves an established connection established; it
// reports false, having changed nothing, for any other.
func (tr *Tracker) fastTCP(b *packet.Batch, f *packet.Frame, c *conn, generation uint32, dir uint8) bool {
	var g segment
	parseTCP(b, f, &g)
	if g.flags&(tcpSyn|tcpFin|tcpRst|tcpAck) != tcpAck || !tr.lockConn(c, generation) {
		return false
	}
	s, r := &c.peers[dir&1], &c.peers[1-dir&1]
	v := verdictInvalid
	if s.phase == phaseEstablished && r.phase == phaseEstablished {
		v = trackACK(s, r, &g, tr.Liberal())
	}
	tr.unlockConn(c, generation)
	return v == verdictValid
}
