// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"weft/packet"
)

// Bits of ct_state, as ovs-fields(7) numbers them.
const (
	New         = 0x01
	Established = 0x02
	Related     = 0x04
	Reply       = 0x08
	Invalid     = 0x10
	Tracked     = 0x20
	SNAT        = 0x40
	DNAT        = 0x80
)

// Request holds the arguments of a ct action.
type Request struct {
	Zone   uint16
	Commit bool
	Force  bool
	// A commit sets Mark and Label under their masks: old &^ mask | value.
	Mark, MarkMask   uint32
	Label, LabelMask [2]uint64
	NAT              NAT
	ALG              ALG // gateway (FTP, TFTP) of new connections; needs Commit
	// Tunnelled is the set of frames that arrived through a tunnel.
	Tunnelled uint32
}

// marks reports whether a commit sets bits of the mark or of the label.
func (r *Request) marks() bool { return uint64(r.MarkMask)|r.LabelMask[0]|r.LabelMask[1] != 0 }

// Meta is the tracker's result for a frame: the values of its ct_* fields. The zero
// Meta means untracked. Another ct action on the same frame starts from the frame's
// Meta.
type Meta struct {
	State uint8 // ct_state
	Dir   uint8 // 1: the frame has the reply direction
	// Drop is the reason why the caller must drop the frame, or DropNone.
	Drop  packet.DropReason
	Zone  uint16
	Mark  uint32
	Label [2]uint64
	Ref   Ref   // connection of the frame; zero: none
	Orig  Tuple // original tuple of the connection; without a connection, the tuple of the frame
}

// Tracker is the connection tracker of one worker. All trackers share one Table.
type Tracker struct {
	*Table
	sought
	rng     uint64
	missing uint32  // number of payload bytes in the other fragments of the datagram
	sender  sender  // sender of the current frame
	begun   newConn // the connection that the current frame begins, see begin
	search  natSearch
	order   [packet.BatchSize]uint8
}

// NewTracker makes a Tracker for one worker. seed must be random.
func NewTracker(t *Table, seed uint64) *Tracker { return &Tracker{Table: t, rng: seed | 1} }

// Process runs frames of the batch, in order, through a ct action and sets the Meta
// of each frame. NAT rewrites the frames. now is CLOCK_MONOTONIC in nanoseconds. The
// header offsets of each frame must be valid.
func (tr *Tracker) Process(b *packet.Batch, frames []uint8, metas *[packet.BatchSize]Meta, req *Request, now uint64) {
	unknown := tr.order[:0]
	for _, i := range frames {
		if !tr.Known(int(i), req.Zone) {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) > 0 {
		tr.seek(b, unknown, req.Zone)
		for _, i := range unknown {
			tr.Settle(int(i))
		}
	}
	if req.Commit && (req.NAT.Kind == NATSrc || req.NAT.Kind == NATDst) {
		tr.prefetchReplies(frames, &req.NAT)
	}
	for _, i := range frames {
		i %= packet.BatchSize
		tr.sender = sender{uint16(b.Frames[i].InPort), req.Tunnelled>>i&1 != 0}
		tr.track(b, int(i), &metas[i], req, now)
	}
}

// track runs frame i through the ct action. The caller has looked the frame up with
// seek.
func (tr *Tracker) track(b *packet.Batch, i int, m *Meta, req *Request, now uint64) {
	t, f, p := tr.Table, &b.Frames[i], &tr.probes[i]
	if m.State&Tracked != 0 && m.Zone == req.Zone && m.Ref.Generation != 0 && tr.trackAgain(b, f, p, m, req, now) {
		return
	}
	m.begin(req.Zone)
	if p.kind == kindNone {
		return
	}
	n, dir, begins := tr.numbers[i], tr.dirs[i], false
	if n == none && tr.created != t.head.counters.Created {
		// An earlier frame of the batch may have created the connection. The look-up is
		// skipped if the frame begins a connection, because create repeats it.
		begins = req.Commit && t.head.expecting.Load() == 0 && tr.begins(b, f, p, req)
		if !begins {
			n, dir = t.find(p)
		}
	}
	for range maxRestarts {
		if n == none && (begins || tr.begins(b, f, p, req)) {
			if tr.unknown(b, f, p, m, req, now) {
				return
			}
		} else if n == none || tr.follow(b, f, p, n, dir, m, req, now) {
			return
		}
		m.begin(req.Zone)
		n, dir = t.find(p)
		begins = false
	}
	if tr.begins(b, f, p, req) {
		tr.unknown(b, f, p, m, req, now)
	}
}

// begins reports whether a frame without a connection may begin one. For a commit, it sets
// tr.begun to the initial state of the connection.
func (tr *Tracker) begins(b *packet.Batch, f *packet.Frame, p *probe, req *Request) bool {
	if p.kind == kindFlow && !req.Commit && p.proto() == packet.ProtoTCP && f.L4 != 0 {
		return beginsTCP(tcpFlags(f)) // only a commit needs the initial state
	}
	return p.kind == kindFlow && tr.begin(b, f, p.proto())
}

func (m *Meta) begin(zone uint16) {
	*m = Meta{}
	m.State, m.Zone = Tracked|Invalid, zone
}

// maxRestarts is how often the look-up of a frame is repeated because its connection
// has ended in the meantime. After that, the frame counts as a frame without a
// connection.
const maxRestarts = 4

// follow tracks a frame that belongs to connection n. It returns false if the
// connection has ended.
func (tr *Tracker) follow(b *packet.Batch, f *packet.Frame, p *probe, n uint32, dir uint8, m *Meta, req *Request, now uint64) bool {
	t := tr.Table
	c := &t.conns[n]
	g := c.generation()
	if again, ok := t.matches(n, p); !ok || again != dir || g&1 == 0 {
		return false // another worker ended or replaced it
	}
	if c.expired(now) {
		t.end(n, g, EndExpired)
		return false
	}
	if req.Force && req.Commit && dir == 1 && p.kind != kindError {
		t.end(n, g, EndReplaced)
		return false
	}
	state := uint8(Tracked | Related)
	if p.kind != kindError {
		v := verdictInvalid
		if v, g = tr.update(b, f, p, n, g, dir, now); v == verdictRestart {
			t.end(n, g, EndReplaced)
			return false
		} else if v == verdictInvalid {
			state = Tracked | Invalid
		} else if c.flags&connReplied != 0 {
			state = Tracked | Established
		} else {
			state = Tracked | New
		}
		if c.flags&connRelated != 0 && state&Invalid == 0 {
			state |= Related
		}
	}
	if dir == 1 && state&Invalid == 0 {
		state |= Reply
	}
	m.State, m.Dir = state, dir
	if c.flags&(connFTP|connTFTP) != 0 && state&Invalid == 0 && p.kind != kindError {
		tr.announce(b, f, n, g, dir, now)
	}
	return tr.apply(b, f, p, n, g, m, req, now)
}

// apply completes the ct action on a frame of connection n: mark, label, original tuple
// and translation. It returns false if the connection has changed in the meantime.
func (tr *Tracker) apply(b *packet.Batch, f *packet.Frame, p *probe, n, g uint32, m *Meta, req *Request, now uint64) bool {
	t := tr.Table
	if req.Commit && req.marks() && m.State&Invalid == 0 {
		if g = t.setMark(n, g, req); g == 0 {
			return false
		}
	}
	var v view
	if !t.read(n, g, &v) {
		return false
	}
	m.Ref = Ref{n, g}
	m.Mark, m.Label = v.mark, v.label
	v.tuples[0].into(&m.Orig, v.addresses(0))
	if v.flags&connRelated != 0 {
		t.originOfParent(v.parent, m)
	}
	if req.NAT.Kind != NATNone && m.State&(Invalid|SNAT|DNAT) == 0 {
		if v.flags&(connFTP|connTranslated) == connFTP|connTranslated && p.kind == kindFlow && f.L4 != 0 {
			if reason, ok := tr.shift(b, f, n, g, &v, m.Dir, now); !ok {
				return false
			} else if reason != packet.DropNone {
				m.Drop = reason
				return true
			}
		}
		m.State |= t.translate(b, f, p, &v, m.Dir)
	}
	return true
}

// originOfParent stores the original tuple of the parent in the Meta of a related frame,
// as long as the parent is alive.
func (t *Table) originOfParent(parent Ref, m *Meta) {
	var up view
	if t.readBorn(parent, &up) {
		up.tuples[0].into(&m.Orig, up.addresses(0))
	}
}

// setMark changes the mark and the label of connection n as req asks. It returns the
// new generation; g if nothing has changed; 0 if n no longer has generation g.
func (t *Table) setMark(n, g uint32, req *Request) uint32 {
	c := &t.conns[n]
	if !t.lockConn(c, g) {
		return 0
	}
	var wasMark uint32
	var wasLabel [2]uint64
	if c.flags&connLabelled != 0 {
		wasMark, wasLabel = c.mark, t.labels[n]
	}
	mark, label := merge(wasMark, wasLabel, req)
	changed := mark != wasMark || label != wasLabel
	if changed || c.flags&connLabelled == 0 {
		c.mark, t.labels[n] = mark, label
		c.flags |= connLabelled
		g += 2
	}
	t.unlockConn(c, g)
	if changed {
		t.emitUpdate(c, n, g, ReasonMark)
	}
	return g
}

func merge(mark uint32, label [2]uint64, req *Request) (uint32, [2]uint64) {
	mark = mark&^req.MarkMask | req.Mark&req.MarkMask
	for i := range label {
		label[i] = label[i]&^req.LabelMask[i] | req.Label[i]&req.LabelMask[i]
	}
	return mark, label
}

// trackAgain tracks a frame that was already tracked in the same zone, with result m.
// It returns false if the frame now belongs, or must belong, to another connection.
func (tr *Tracker) trackAgain(b *packet.Batch, f *packet.Frame, p *probe, m *Meta, req *Request, now uint64) bool {
	t := tr.Table
	n := m.Ref.Number
	if n >= uint32(len(t.conns)) || t.conns[n].generation() != m.Ref.Generation || !t.carries(n, p, m) {
		return false
	}
	if req.Force && req.Commit && m.Dir == 1 && m.State&Related == 0 {
		if m.State&(SNAT|DNAT) == 0 {
			t.end(n, m.Ref.Generation, EndReplaced)
		}
		return false
	}
	return tr.apply(b, f, p, n, m.Ref.Generation, m, req, now)
}

// carries reports whether a frame with the earlier result m still has a tuple of
// connection n. If m says that the frame was translated, the tuple is the translated
// one. Actions in between may have changed the tuple.
func (t *Table) carries(n uint32, p *probe, m *Meta) bool {
	if m.State&(SNAT|DNAT) == 0 {
		dir, ok := t.matches(n, p)
		return ok && dir == m.Dir
	}
	long := t.longOf(n, 1-m.Dir&1)
	return p.tuple(&p.long) == t.conns[n].tuples[1-m.Dir&1].tuple(&long).Reverse()
}

// unknown tracks a frame that belongs to no connection. A commit begins the connection
// tr.begun. unknown returns false if another worker has just created the connection.
func (tr *Tracker) unknown(b *packet.Batch, f *packet.Frame, p *probe, m *Meta, req *Request, now uint64) bool {
	g := &tr.begun
	m.State = Tracked | New
	p.words.into(&m.Orig, &p.long)
	if tr.head.expecting.Load() != 0 {
		tr.relate(p, m, req, now)
	}
	if !req.Commit {
		return true
	}
	g.alg, g.sender = req.ALG, tr.sender
	if g.mark, g.label = m.Mark, m.Label; req.marks() {
		g.mark, g.label = merge(m.Mark, m.Label, req)
	}
	g.marked = uint64(g.mark)|g.label[0]|g.label[1] != 0
	ref, created, reason := tr.create(p, &req.NAT, g, now)
	if reason != packet.DropNone {
		m.Drop = reason
		return true
	}
	if !created {
		return false
	}
	if req.ALG == ALGTFTP { // the first frame is the request
		tr.announce(b, f, ref.Number, ref.Generation, 0, now)
	}
	if req.NAT.Kind == NATNone && !req.marks() && g.related.Generation == 0 {
		m.Ref = ref // apply would read the same mark, label and tuple from the record
		return true
	}
	return tr.apply(b, f, p, ref.Number, ref.Generation, m, req, now)
}

// relate makes tr.begun a related connection if an expectation (of FTP or TFTP) matches tuple
// p. m then has the parent's original tuple, mark and label.
func (tr *Tracker) relate(p *probe, m *Meta, req *Request, now uint64) {
	x, ok := tr.expected(p, now, req.Commit)
	if !ok {
		return
	}
	m.State |= Related
	var up view
	if tr.readBorn(x.parent, &up) {
		up.tuples[0].into(&m.Orig, up.addresses(0))
		if up.flags&connLabelled != 0 {
			m.Mark, m.Label = up.mark, up.label
		}
	}
	g := &tr.begun
	g.related, g.announcer, g.announced = x.parent, x.announcer, x.announced
}

// begin sets tr.begun to the initial state of the connection that frame f begins. It
// returns false if f cannot begin one.
func (tr *Tracker) begin(b *packet.Batch, f *packet.Frame, proto uint8) bool {
	g := &tr.begun
	*g = newConn{}
	switch {
	case proto == packet.ProtoTCP && f.L4 != 0:
		var s segment
		parseTCP(b, f, &s)
		s.length += tr.missing
		if !beginTCP(&g.peers, &s) {
			return false
		}
		_, g.class = stateOf(g.peers[0].phase, g.peers[1].phase)
	case proto == packet.ProtoSCTP && f.L4 != 0:
		var c chunk
		if !parseSCTP(b, f, &c) || !beginSCTP(&g.peers, &c) {
			return false
		}
		g.class = classOfSCTP(g.peers[0].phase, g.peers[1].phase)
	default:
		g.class = classOfSimple(proto, 0)
	}
	return true
}

// update updates the state of connection n for a frame with tuple p, and returns the
// new generation. Fields that were read without the lock are valid only if n still has
// generation g.
func (tr *Tracker) update(b *packet.Batch, f *packet.Frame, p *probe, n, g uint32, dir uint8, now uint64) (verdict, uint32) {
	t := tr.Table
	c, peers := &t.conns[n], &t.peers[n]
	proto := p.proto()
	kind := c.list
	v, class, was := verdictValid, Class(0), c.class
	switch {
	case proto == packet.ProtoTCP && f.L4 != 0:
		var s segment
		parseTCP(b, f, &s)
		s.length += tr.missing
		if !t.lockConn(c, g) {
			return verdictInvalid, g
		}
		// the tracker uses the sequence numbers as the sender sent them, see shift.go
		if c.flags&connFTP != 0 {
			s.ack = t.shifts[n][1-dir&1].acknowledged(s.ack)
		}
		_, was = stateOf(peers[0].phase, peers[1].phase)
		v = trackTCP(&peers[dir&1], &peers[1-dir&1], &s, t.Liberal())
		_, class = stateOf(peers[0].phase, peers[1].phase)
		t.unlockConn(c, g)
		if class == TCPTimeWait || class == TCPClose {
			kind = listClosing
		}
	case proto == packet.ProtoSCTP && f.L4 != 0:
		var s chunk
		if !parseSCTP(b, f, &s) || !t.lockConn(c, g) {
			return verdictInvalid, g
		}
		was = classOfSCTP(peers[0].phase, peers[1].phase)
		v = trackSCTP(&peers[dir&1], &peers[1-dir&1], &s)
		class = classOfSCTP(peers[0].phase, peers[1].phase)
		t.unlockConn(c, g)
	}
	if v != verdictValid {
		return v, g
	}
	if dir == 1 && c.flags&connReplied == 0 || c.flags&(connReplied|connSeen) == 0 {
		if !t.lockConn(c, g) {
			return verdictInvalid, g
		}
		c.flags |= connSeen
		if dir == 1 {
			c.flags |= connReplied
			g += 2 // the ct_state of the original direction changes
		}
		t.unlockConn(c, g)
	}
	if c.flags&connReplied != 0 && kind == listUnreplied {
		kind = listEstablished
	}
	if proto != packet.ProtoTCP && proto != packet.ProtoSCTP {
		class = classOfSimple(proto, c.flags)
	}
	if kind != c.list {
		t.relist(n, g, kind)
	}
	if !t.keep(c, g, class, now) {
		return verdictInvalid, g
	}
	if class != was {
		t.emitUpdate(c, n, g, ReasonState)
	}
	return v, g
}
