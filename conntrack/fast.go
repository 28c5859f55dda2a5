// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/bits"

	"weft/packet"
)

// Fast executes a ct action on frame i of the batch, which must be TCP or UDP. It uses the connection that
// Settle has found for the frame. Fast updates the connection's state and timeout. If translates is set and
// the connection has NAT, it rewrites the frame. It returns the ct_state bits snat and dnat. now is
// CLOCK_MONOTONIC in nanoseconds.
//
// ok is false if the connection has ended or changed, or is not established. Fast has then changed nothing,
// and the caller must use Process instead.
func (tr *Tracker) Fast(b *packet.Batch, i int, translates bool, now uint64) (state uint8, ok bool) {
	i %= packet.BatchSize
	t, f, dir := tr.Table, &b.Frames[i], tr.dirs[i]&1
	n, g := tr.numbers[i]&uint32(len(t.conns)-1), tr.generations[i]
	c := &t.conns[n]
	flags, other := c.flags, c.tuples[1-dir]
	if flags&(connFTP|connTFTP|connReplied) != connReplied || c.expired(now) {
		return 0, false
	}
	if f.Proto == packet.ProtoTCP {
		if !tr.fastTCP(b, f, Ref{n, g}, dir, now) {
			return 0, false
		}
	} else if !c.hasGeneration(g) || t.due(c, udpMultiple, now) && !t.keep(c, g, udpMultiple, now) {
		return 0, false
	}
	// The fields belong to this connection, because the generation was compared after
	// they were read.
	if flags&connTranslated == 0 || !translates {
		return 0, true
	}
	if other.setIPv4Endpoints(f) {
		return translated(flags, dir), true
	}
	return tr.fastOther(b, f, &tr.probes[i], Ref{n, g}, dir)
}

// FastAll calls Fast for each frame in the list. It stops at the first frame for which Fast returns false,
// and returns the number of frames before that one. The set quick (Settled.Quick) has the frames for which
// Fast would change nothing in the connection. For them, FastAll only compares the generation and rewrites
// the frame.
func (tr *Tracker) FastAll(b *packet.Batch, frames []uint8, quick uint32, translates bool, now uint64) int {
	conns := tr.Table.conns
	for n, i := range frames {
		i %= packet.BatchSize
		if quick>>i&1 != 0 {
			c := &conns[tr.numbers[i]&uint32(len(conns)-1)]
			flags, other := c.flags, &c.tuples[1-tr.dirs[i]&1]
			ends, ports := bits.RotateLeft64(other.a, 32), bits.RotateLeft32(uint32(other.b>>32), 16)
			if c.hasGeneration(tr.generations[i]) && (!translates || flags&connTranslated == 0 || b.Frames[i].SetIPv4Ends(ends, ports)) {
				continue
			}
		}
		if _, ok := tr.Fast(b, int(i), translates, now); !ok {
			return n
		}
	}
	return len(frames)
}

func (tr *Tracker) fastOther(b *packet.Batch, f *packet.Frame, p *probe, ref Ref, dir uint8) (state uint8, ok bool) {
	var v view
	if !tr.read(ref.Number, ref.Generation, &v) {
		return 0, false
	}
	return tr.translate(b, f, p, &v, dir), true
}

// fastTCP updates an established connection for a valid TCP segment with ACK and without SYN, FIN or RST.
// For any other segment it changes nothing and returns false.
func (tr *Tracker) fastTCP(b *packet.Batch, f *packet.Frame, ref Ref, dir uint8, now uint64) bool {
	c, peers := &tr.conns[ref.Number], &tr.peers[ref.Number]
	var g segment
	parseTCP(b, f, &g)
	if g.flags&(tcpSyn|tcpFin|tcpRst|tcpAck) != tcpAck || !tr.lockConn(c, ref.Generation) {
		return false
	}
	s, r := &peers[dir&1], &peers[1-dir&1]
	v := verdictInvalid
	if s.phase == phaseEstablished && r.phase == phaseEstablished {
		if v = trackACK(s, r, &g, tr.Liberal()); v == verdictValid {
			tr.refresh(c, tcpEstablished, now)
		}
	}
	tr.unlockConn(c, ref.Generation)
	return v == verdictValid
}
