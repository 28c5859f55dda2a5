// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"weft/flowtable"
	"weft/packet"
)

// Bits of ct_state.
const (
	New         = flowtable.StateNew
	Established = flowtable.StateEstablished
	Related     = flowtable.StateRelated
	Reply       = flowtable.StateReply
	Invalid     = flowtable.StateInvalid
	Tracked     = flowtable.StateTracked
	SNAT        = flowtable.StateSNAT
	DNAT        = flowtable.StateDNAT
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
	// Tunnelled is the set of frames that arrived through a tunnel, one bit each.
	Tunnelled uint32
}

// marks reports whether the action sets bits of the mark or of the label.
func (r *Request) marks() bool { return uint64(r.MarkMask)|r.LabelMask[0]|r.LabelMask[1] != 0 }

// Meta is the tracker's result for a frame: the values of its ct_* fields. The zero Meta means that the
// frame was not tracked. The caller keeps the Meta, because a later ct action on the same frame needs it.
type Meta struct {
	State uint8 // ct_state
	Dir   uint8 // 1: the frame has the reply direction
	// Drop is the reason why the caller must drop the frame, or DropNone.
	Drop  packet.DropReason
	Zone  uint16
	Mark  uint32
	Label [2]uint64
	Ref   Ref   // connection of the frame; zero if it has none
	Orig  Tuple // original tuple of the connection; without a connection, the tuple of the frame
}

// Tracker is the connection tracker of one worker. All trackers share one Table.
type Tracker struct {
	*Table
	sought
	rng     uint64
	missing uint32  // number of payload bytes in the other fragments of the datagram
	sender  sender  // sender of the current frame
	begun   newConn // initial state of the connection that the current frame begins, see begin
	search  natSearch
	order   [packet.BatchSize]uint8
}

// trackedFrame is a frame on which a ct action is executed, with the arguments of the action.
type trackedFrame struct {
	batch *packet.Batch
	frame *packet.Frame // in the batch
	probe *probe        // tuple of the frame, with its hash
	meta  *Meta         // result
	req   *Request
	now   uint64 // CLOCK_MONOTONIC in nanoseconds
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
		tr.track(&trackedFrame{b, &b.Frames[i], &tr.probes[i], &metas[i], req, now}, int(i))
	}
}

// track runs x, which is frame i of its batch, through the ct action. The caller has looked
// the frame up with seek.
func (tr *Tracker) track(x *trackedFrame, i int) {
	t := tr.Table
	if x.meta.State&Tracked != 0 && x.meta.Zone == x.req.Zone && x.meta.Ref.Generation != 0 && tr.trackAgain(x) {
		return
	}
	x.meta.begin(x.req.Zone)
	if x.probe.kind == kindNone {
		return
	}
	n, dir, begins := tr.numbers[i], tr.dirs[i], false
	if n == none && tr.created != t.head.counters.Created {
		// An earlier frame of the batch may have created the connection. The look-up is
		// skipped if the frame begins a connection, because create repeats it.
		begins = x.req.Commit && t.head.expecting.Load() == 0 && tr.begins(x)
		if !begins {
			n, dir = t.find(x.probe)
		}
	}
	for range maxRestarts {
		if n == none && (begins || tr.begins(x)) {
			if tr.unknown(x) {
				return
			}
		} else if n == none || tr.follow(x, n, dir) {
			return
		}
		x.meta.begin(x.req.Zone)
		n, dir = t.find(x.probe)
		begins = false
	}
	if tr.begins(x) {
		tr.unknown(x)
	}
}

// begins reports whether frame x, which belongs to no connection, may begin one. If the action commits,
// begins sets tr.begun to the initial state of the connection.
func (tr *Tracker) begins(x *trackedFrame) bool {
	if x.probe.kind == kindFlow && !x.req.Commit && x.probe.proto() == packet.ProtoTCP && x.frame.L4 != 0 {
		return beginsTCP(tcpFlags(x.frame)) // only a commit needs the initial state
	}
	return x.probe.kind == kindFlow && tr.begin(x.batch, x.frame, x.probe.proto())
}

func (m *Meta) begin(zone uint16) {
	*m = Meta{}
	m.State, m.Zone = Tracked|Invalid, zone
}

// maxRestarts is the largest number of attempts to track one frame. An attempt fails if the connection that
// the look-up has found ends in the meantime. After the last attempt, the frame is treated as one without a
// connection.
const maxRestarts = 4

// follow tracks frame x of connection n in direction dir, which the look-up has found. It returns false if
// the look-up must be repeated because the connection has ended. follow itself ends a connection that has
// expired or must be replaced.
func (tr *Tracker) follow(x *trackedFrame, n uint32, dir uint8) bool {
	t := tr.Table
	c := &t.conns[n]
	g := c.generation()
	if again, ok := t.matches(n, x.probe); !ok || again != dir || g&1 == 0 {
		return false // another worker has ended the connection or reused its record
	}
	if c.expired(x.now) {
		t.end(n, g, endExpired)
		return false
	}
	if x.req.Force && x.req.Commit && dir == 1 && x.probe.kind != kindError {
		t.end(n, g, endReplaced)
		return false
	}
	state := uint8(Tracked | Related)
	if x.probe.kind != kindError {
		v := verdictInvalid
		if v, g = tr.update(x, n, g, dir); v == verdictRestart {
			t.end(n, g, endReplaced)
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
	x.meta.State, x.meta.Dir = state, dir
	if c.flags&(connFTP|connTFTP) != 0 && state&Invalid == 0 && x.probe.kind != kindError {
		if !tr.announce(x, n, g, dir) {
			x.meta.Drop = packet.DropGateway
			return true
		}
	}
	return tr.apply(x, n, g)
}

// apply completes the ct action on a frame of connection n: mark, label, original tuple
// and translation. It returns false if the connection has changed in the meantime.
func (tr *Tracker) apply(x *trackedFrame, n, g uint32) bool {
	t := tr.Table
	if x.req.Commit && x.req.marks() && x.meta.State&Invalid == 0 {
		if g = t.setMark(n, g, x.req); g == 0 {
			return false
		}
	}
	var v view
	if !t.read(n, g, &v) {
		return false
	}
	x.meta.Ref = Ref{n, g}
	x.meta.Mark, x.meta.Label = v.mark, v.label
	v.tuples[0].setTuple(&x.meta.Orig, v.addresses(0))
	if v.flags&connRelated != 0 {
		t.originOfParent(v.parent, x.meta)
	}
	if x.req.NAT.Kind != NATNone && x.meta.State&(Invalid|SNAT|DNAT) == 0 {
		if v.flags&(connFTP|connTranslated) == connFTP|connTranslated && x.probe.kind == kindFlow && x.frame.L4 != 0 {
			if reason, ok := tr.shift(x, n, g, &v); !ok {
				return false
			} else if reason != packet.DropNone {
				x.meta.Drop = reason
				return true
			}
		}
		x.meta.State |= t.translate(x.batch, x.frame, x.probe, &v, x.meta.Dir)
	}
	return true
}

// originOfParent stores the parent's original tuple in m, the Meta of a frame of a related connection. It
// does nothing if the parent has ended.
func (t *Table) originOfParent(parent Ref, m *Meta) {
	var up view
	if t.readBorn(parent, &up) {
		up.tuples[0].setTuple(&m.Orig, up.addresses(0))
	}
}

// setMark sets the mark and the label of connection n to the values in req, under their masks. It returns
// the connection's generation, which differs from g if ct_mark or ct_label may have changed. It returns 0
// if n no longer has generation g, because another worker has ended or changed it.
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
		t.takeBack(n)
		t.emitUpdate(c, n, g, reasonMark)
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

// trackAgain tracks a frame that was already tracked in the same zone, with the result x.meta. It returns
// false if the look-up must be repeated: the frame's tuple has changed, or its connection has ended or must
// be replaced.
func (tr *Tracker) trackAgain(x *trackedFrame) bool {
	t := tr.Table
	n := x.meta.Ref.Number
	if n >= uint32(len(t.conns)) || t.conns[n].generation() != x.meta.Ref.Generation || !t.carries(n, x.probe, x.meta) {
		return false
	}
	if x.req.Force && x.req.Commit && x.meta.Dir == 1 && x.meta.State&Related == 0 {
		if x.meta.State&(SNAT|DNAT) == 0 {
			t.end(n, x.meta.Ref.Generation, endReplaced)
		}
		return false
	}
	return tr.apply(x, n, x.meta.Ref.Generation)
}

// carries reports whether a frame still has the tuple of connection n. An earlier ct action has tracked the
// frame with result m. If that action has translated the frame, the translated tuple counts. Later actions
// may have changed the frame.
func (t *Table) carries(n uint32, p *probe, m *Meta) bool {
	if m.State&(SNAT|DNAT) == 0 {
		dir, ok := t.matches(n, p)
		return ok && dir == m.Dir
	}
	long := t.longOf(n, 1-m.Dir&1)
	return p.tuple(&p.long) == t.conns[n].tuples[1-m.Dir&1].tuple(&long).Reverse()
}

// unknown tracks frame x, which belongs to no connection. If the action commits, unknown creates the
// connection tr.begun. It returns false if another worker has just created this connection, so that
// the look-up must be repeated.
func (tr *Tracker) unknown(x *trackedFrame) bool {
	g := &tr.begun
	x.meta.State = Tracked | New
	x.probe.words.setTuple(&x.meta.Orig, &x.probe.long)
	if tr.head.expecting.Load() != 0 {
		tr.relate(x)
	}
	if !x.req.Commit {
		return true
	}
	g.alg, g.sender = x.req.ALG, tr.sender
	if g.mark, g.label = x.meta.Mark, x.meta.Label; x.req.marks() {
		g.mark, g.label = merge(x.meta.Mark, x.meta.Label, x.req)
	}
	g.marked = uint64(g.mark)|g.label[0]|g.label[1] != 0
	ref, created, reason := tr.create(x.probe, &x.req.NAT, g, x.now)
	if reason != packet.DropNone {
		x.meta.Drop = reason
		return true
	}
	if !created {
		return false
	}
	if x.req.ALG == ALGTFTP && !tr.announce(x, ref.Number, ref.Generation, 0) { // the first frame is the request
		x.meta.Drop = packet.DropGateway
		return true
	}
	if x.req.NAT.Kind == NATNone && !x.req.marks() && g.related.Generation == 0 {
		x.meta.Ref = ref // apply would read the same mark, label and tuple from the record
		return true
	}
	return tr.apply(x, ref.Number, ref.Generation)
}

// relate looks for an expectation (an FTP or TFTP connection that was announced) with the tuple of
// frame x. If there is one, tr.begun becomes a related connection, and x.meta gets the parent's original
// tuple, mark and label.
func (tr *Tracker) relate(x *trackedFrame) {
	e, ok := tr.expected(x.probe, x.now, x.req.Commit)
	if !ok {
		return
	}
	x.meta.State |= Related
	var up view
	if tr.readBorn(e.parent, &up) {
		up.tuples[0].setTuple(&x.meta.Orig, up.addresses(0))
		if up.flags&connLabelled != 0 {
			x.meta.Mark, x.meta.Label = up.mark, up.label
		}
	}
	g := &tr.begun
	g.related, g.announcer, g.announced = e.parent, e.announcer, e.announced
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

// update changes the protocol state and the timeout of connection n for frame x, which has direction
// dir. The second result is the connection's new generation. Fields that the caller has read without the
// lock are valid only if n still has generation g.
func (tr *Tracker) update(x *trackedFrame, n, g uint32, dir uint8) (verdict, uint32) {
	t := tr.Table
	c, peers := &t.conns[n], &t.peers[n]
	proto := x.probe.proto()
	kind := c.list
	v, class, was := verdictValid, Class(0), c.class
	switch {
	case proto == packet.ProtoTCP && x.frame.L4 != 0:
		var s segment
		parseTCP(x.batch, x.frame, &s)
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
		if class == tcpTimeWait || class == tcpClose {
			kind = listClosing
		}
	case proto == packet.ProtoSCTP && x.frame.L4 != 0:
		var s chunk
		if !parseSCTP(x.batch, x.frame, &s) || !t.lockConn(c, g) {
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
	if !t.keep(c, g, class, x.now) {
		return verdictInvalid, g
	}
	if class != was {
		t.takeBack(n)
		t.emitUpdate(c, n, g, reasonState)
	}
	return v, g
}
