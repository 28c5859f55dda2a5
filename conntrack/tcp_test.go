// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"math/rand"
	"testing"
)

// slowTCP is a reference implementation of the tracker's rules for TCP, with 64-bit
// sequence numbers and a list of all segments.

type slowSegment struct {
	from     int
	seq, ack int64
	length   int64
	window   int64 // unscaled
	flags    uint16
	scale    int // -1: none
}

type slowSide struct {
	phase   phase
	scale   int
	scales  bool
	isn     int64
	ends    []int64 // sequence number after each segment
	edges   []int64 // limits that the peer's windows allow
	offers  []int64 // windows offered, scaled
	surplus int64   // number of sequence numbers that were sent beyond the known window
}

func greatest(list []int64) int64 {
	m := list[0]
	for _, v := range list {
		m = max(m, v)
	}
	return m
}

func (s *slowSide) end() int64  { return greatest(s.ends) }
func (s *slowSide) edge() int64 { return greatest(s.edges) }
func (s *slowSide) offer() int64 {
	return greatest(s.offers) + s.surplus
}

type slowTCP struct{ sides [2]slowSide }

func (c *slowTCP) syn(s *slowSide, g slowSegment) {
	*s = slowSide{phase: phaseSyn, isn: g.seq, ends: []int64{g.seq + g.length}, edges: []int64{g.seq + 1}, offers: []int64{max(g.window, 1)}}
	if g.scale >= 0 {
		s.scale, s.scales = min(g.scale, 14), true
	}
}

func (c *slowTCP) agree() {
	if !c.sides[0].scales || !c.sides[1].scales {
		c.sides[0].scale, c.sides[1].scale = 0, 0
	}
}

func (c *slowTCP) see(g slowSegment) verdict {
	s, r := &c.sides[g.from], &c.sides[1-g.from]
	syn, ack, rst, fin := g.flags&tcpSyn != 0, g.flags&tcpAck != 0, g.flags&tcpRst != 0, g.flags&tcpFin != 0
	if syn && (rst || fin) || fin && (!ack || rst) || !syn && !ack && !rst {
		return verdictInvalid
	}
	acksSYN := func() bool {
		return g.ack == r.end() || s.phase == phaseNone && g.ack >= r.edge() && g.ack < r.end()
	}
	inWindow := func() bool { return g.seq <= s.edge() && g.seq+g.length >= s.end()-r.offer() }
	switch {
	case rst && s.phase == phaseReset:
		return verdictIgnored
	case rst && s.phase == phaseNone:
		if !ack || !acksSYN() {
			return verdictInvalid
		}
		s.phase, r.phase = phaseReset, phaseReset
	case rst:
		if r.phase == phaseNone && len(r.offers) == 0 {
			r.offers, r.ends, r.edges = []int64{0}, []int64{0}, []int64{0}
		}
		if !inWindow() {
			return verdictInvalid
		}
		s.phase, r.phase = phaseReset, phaseReset
	case syn && !ack:
		switch {
		case s.phase >= phaseDone && r.phase >= phaseDone:
			return verdictRestart
		case s.phase == phaseNone:
			c.syn(s, g)
			c.agree()
			s.edges = []int64{s.end() + r.offer()}
		case s.phase == phaseSyn && g.seq+g.length == s.end():
		case s.phase == phaseSyn && r.phase == phaseNone:
			c.syn(s, g)
		default:
			return verdictIgnored
		}
	case syn && s.phase <= phaseSyn:
		if r.phase == phaseNone || g.ack > r.end() || r.phase == phaseSyn && !acksSYN() {
			return verdictInvalid
		}
		if s.phase == phaseNone || g.seq+g.length != s.end() {
			c.syn(s, g)
			c.agree()
			s.edges = []int64{s.end() + r.offer()}
		}
		if r.phase == phaseSyn {
			r.phase = phaseEstablished
		}
		r.edges = append(r.edges, g.ack+max(g.window, 1))
	default:
		return c.seeACK(s, r, g, inWindow)
	}
	return verdictValid
}

func (c *slowTCP) seeACK(s, r *slowSide, g slowSegment, inWindow func() bool) verdict {
	switch {
	case s.phase == phaseNone || r.phase == phaseNone:
		return verdictInvalid
	case s.phase == phaseReset:
		return verdictIgnored
	case !inWindow() || g.ack > r.end() || g.ack < r.end()-max(s.offer(), 66000):
		return verdictInvalid
	}
	window := g.window
	if g.flags&tcpSyn == 0 {
		window <<= s.scale
	}
	if end := g.seq + g.length; end > s.edge() {
		r.surplus += end - s.edge()
	}
	s.ends = append(s.ends, g.seq+g.length)
	if g.flags&tcpFin != 0 && s.phase < phaseFin {
		s.phase = phaseFin
	}
	if s.surplus > 0 { // the tracker keeps only maxima, so its largest window grows by the surplus
		s.offers, s.surplus = []int64{s.offer()}, 0
	}
	s.offers = append(s.offers, window)
	if edge := g.ack + window; edge >= r.edge() {
		if window == 0 {
			edge++
		}
		r.edges = append(r.edges, edge)
	}
	if r.phase == phaseSyn {
		r.phase = phaseEstablished
	} else if r.phase == phaseFin && g.ack == r.end() {
		r.phase = phaseDone
	}
	return verdictValid
}

// FuzzTCPTwin compares the verdicts of the tracker and of slowTCP on segments that mostly follow the state of
// the connection.
func FuzzTCPTwin(f *testing.F) {
	for seed := range int64(20) {
		f.Add(seed, uint8(seed*13))
	}
	f.Fuzz(func(t *testing.T, seed int64, shape uint8) { tryTCPTwin(t, seed, shape) })
}

func TestTCPTwin(t *testing.T) {
	for seed := range int64(5000) {
		tryTCPTwin(t, seed, uint8(seed))
	}
}

func tryTCPTwin(t *testing.T, seed int64, shape uint8) {
	rng := rand.New(rand.NewSource(seed))
	var slow slowTCP
	var fast [2]peer
	// Random initial sequence numbers, so that some wrap around.
	isn := [2]int64{int64(rng.Uint32()) + 1<<34, int64(rng.Uint32()) + 1<<34}
	if shape&1 != 0 {
		isn[0] = 1<<35 - int64(rng.Intn(3000))
	}
	next := isn
	flags := []uint16{tcpAck, tcpAck, tcpAck, tcpAck, tcpAck | tcpPsh, tcpAck | tcpFin, tcpRst, tcpRst | tcpAck, tcpSyn, tcpSyn | tcpAck, 0, tcpFin | tcpSyn}
	for step := range 60 {
		g := slowSegment{from: rng.Intn(2), flags: flags[rng.Intn(len(flags))], window: int64(rng.Intn(1 << (1 + rng.Intn(16)))), scale: rng.Intn(17) - 1}
		switch {
		case step == 0:
			g.from, g.flags = 0, tcpSyn
		case step == 1 && shape&2 != 0:
			g.from, g.flags = 1, tcpSyn|tcpAck
		case step == 2 && shape&2 != 0:
			g.from, g.flags = 0, tcpAck
		case rng.Intn(4) > 0 && g.flags&(tcpRst|tcpSyn) != 0:
			g.flags = tcpAck
		}
		other := 1 - g.from
		g.seq, g.ack = next[g.from], next[other]
		if g.flags&tcpSyn != 0 {
			g.seq = isn[g.from]
		}
		if shape&4 != 0 && rng.Intn(3) == 0 {
			g.seq += int64(rng.Intn(200001) - 100000)
		}
		if shape&8 != 0 && rng.Intn(3) == 0 {
			g.ack += int64(rng.Intn(200001) - 100000)
		}
		if rng.Intn(2) == 0 {
			g.length = int64(rng.Intn(1500))
		}
		if g.flags&tcpSyn != 0 {
			g.length = 1
		}
		if g.flags&tcpFin != 0 && g.flags&tcpSyn == 0 {
			g.length++
		}
		narrow := segment{seq: uint32(g.seq), ack: uint32(g.ack), length: uint32(g.length), window: uint32(g.window), flags: g.flags, scale: noScale}
		if g.flags&tcpSyn != 0 && g.scale >= 0 {
			narrow.scale = uint8(min(g.scale, 14))
		} else {
			g.scale = -1
		}
		if step == 0 {
			if !beginTCP(&fast, &narrow) {
				t.Fatal("beginTCP refused the first segment")
			}
			slow.syn(&slow.sides[0], g)
		} else {
			was := fmt.Sprintf("%+v", fast)
			got, want := trackTCP(&fast[g.from], &fast[other], &narrow, false), slow.see(g)
			if got != want {
				t.Fatalf("step %d: segment %+v in state %s: verdict %d, want %d", step, g, was, got, want)
			}
			if got == verdictInvalid || got == verdictIgnored {
				continue
			}
			if got == verdictRestart {
				return
			}
		}
		for i := range fast {
			if fast[i].phase != slow.sides[i].phase {
				t.Fatalf("step %d: %+v: side %d in phase %d, want %d", step, g, i, fast[i].phase, slow.sides[i].phase)
			}
		}
		next[g.from] = max(next[g.from], g.seq+g.length)
	}
}

// In this test, two endpoints follow RFC 9293 over a network that loses, repeats and
// reorders segments. The tracker must accept every segment that an endpoint would
// accept, and refuse forged ones.

type endpoint struct {
	una, nxt   int64 // SND.UNA, SND.NXT
	rcv        int64 // RCV.NXT
	wnd        int64 // its own receive window in bytes
	edge       int64 // end of the window for sending
	scale      int
	fin        bool // its FIN is sent
	finAt      int64
	peerFin    bool
	greatestWn int64 // largest window that the peer has offered so far
}

// acceptable applies the first check of RFC 9293 section 3.10.7.4, and its check of
// SEG.ACK with the lower bound of RFC 5961.
func (e *endpoint) acceptable(g slowSegment) bool {
	if g.ack > e.nxt || g.ack < e.una-e.greatestWn {
		return false
	}
	switch {
	case g.length == 0 && e.wnd == 0:
		return g.seq == e.rcv
	case g.length == 0:
		return g.seq >= e.rcv && g.seq < e.rcv+e.wnd
	case e.wnd == 0:
		return false
	}
	last := g.seq + g.length - 1
	return g.seq >= e.rcv && g.seq < e.rcv+e.wnd || last >= e.rcv && last < e.rcv+e.wnd
}

func (e *endpoint) take(g slowSegment, scale int) {
	if !e.acceptable(g) {
		return
	}
	e.una = max(e.una, g.ack)
	window := g.window << scale
	e.greatestWn = max(e.greatestWn, window)
	e.edge = max(e.edge, g.ack+window)
	if g.seq <= e.rcv && g.seq+g.length > e.rcv {
		e.rcv = g.seq + g.length
		e.peerFin = e.peerFin || g.flags&tcpFin != 0
	}
}

func TestTCPModel(t *testing.T) {
	for seed := range int64(400) {
		tryTCPModel(t, seed)
	}
}

func FuzzTCPModel(f *testing.F) {
	for seed := range int64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) { tryTCPModel(t, seed) })
}

func tryTCPModel(t *testing.T, seed int64) {
	rng := rand.New(rand.NewSource(seed))
	isn := [2]int64{int64(rng.Uint32()), int64(rng.Uint32())}
	scale := [2]int{rng.Intn(15), rng.Intn(15)}
	var ends [2]endpoint
	var peers [2]peer
	narrow := func(g slowSegment) *segment {
		n := &segment{seq: uint32(g.seq), ack: uint32(g.ack), length: uint32(g.length), window: uint32(g.window), flags: g.flags, scale: noScale}
		if g.scale >= 0 {
			n.scale = uint8(g.scale)
		}
		return n
	}
	// A handshake without losses.
	syn := slowSegment{seq: isn[0], length: 1, window: 1000, flags: tcpSyn, scale: scale[0]}
	synAck := slowSegment{from: 1, seq: isn[1], ack: isn[0] + 1, length: 1, window: 1000, flags: tcpSyn | tcpAck, scale: scale[1]}
	if !beginTCP(&peers, narrow(syn)) || trackTCP(&peers[1], &peers[0], narrow(synAck), false) != verdictValid {
		t.Fatal("the tracker refused the handshake")
	}
	for i := range ends {
		ends[i] = endpoint{una: isn[i] + 1, nxt: isn[i] + 1, rcv: isn[1-i] + 1, wnd: 1000, edge: isn[i] + 1001, scale: scale[i], greatestWn: 1000}
	}
	var before, behind [2][]slowSegment // segments in flight before the tracker and after it, by sender
	for step := range 300 {
		i := rng.Intn(2)
		switch e := &ends[i]; rng.Intn(4) {
		case 0, 1: // send new data, old data, or only an acknowledgement
			e.wnd = int64(rng.Intn(1<<16)>>rng.Intn(16)) << e.scale
			// An endpoint does not shrink its window (RFC 9293 section 3.8.6).
			g := slowSegment{from: i, seq: e.nxt, ack: e.rcv, window: e.wnd >> e.scale, flags: tcpAck, scale: -1}
			if rng.Intn(3) == 0 && e.una < e.nxt && !e.fin {
				g.seq = e.una + rng.Int63n(e.nxt-e.una)
				g.length = min(e.nxt-g.seq, int64(rng.Intn(1460)))
			} else if !e.fin && e.nxt < e.edge {
				g.length = min(e.edge-e.nxt, int64(rng.Intn(1460)))
				if step > 200 && rng.Intn(10) == 0 && e.nxt+g.length+1 <= e.edge {
					g.flags |= tcpFin
					g.length++
					e.fin, e.finAt = true, e.nxt+g.length
				}
				e.nxt += g.length
			}
			before[i] = append(before[i], g)
		case 2: // move a segment past the tracker
			if n := len(before[i]); n > 0 {
				at := rng.Intn(min(n, 4))
				g := before[i][at]
				if rng.Intn(8) > 0 { // otherwise the segment is duplicated
					before[i] = append(before[i][:at:at], before[i][at+1:]...)
				}
				if rng.Intn(10) == 0 {
					continue // lost
				}
				accepts := ends[1-i].acceptable(g)
				was := fmt.Sprintf("%+v", peers)
				v := trackTCP(&peers[i], &peers[1-i], narrow(g), false)
				if v == verdictInvalid && accepts {
					t.Fatalf("step %d: the tracker refuses %+v, which %+v would accept; state %s", step, g, ends[1-i], was)
				}
				if v != verdictInvalid {
					behind[i] = append(behind[i], g)
				}
			}
		case 3: // deliver a segment to the other endpoint
			if n := len(behind[i]); n > 0 {
				at := rng.Intn(min(n, 4))
				g := behind[i][at]
				behind[i] = append(behind[i][:at:at], behind[i][at+1:]...)
				if rng.Intn(10) > 0 {
					ends[1-i].take(g, scale[i])
				}
			}
		}
		// A forged segment is beyond all windows, or acknowledges data that was not sent.
		stray := slowSegment{from: i, seq: ends[i].nxt, ack: ends[i].rcv, window: 1000, flags: tcpAck, scale: -1}
		if rng.Intn(2) == 0 {
			stray.seq += 1<<30 + rng.Int63n(1<<29)
		} else {
			stray.ack += 1<<30 + rng.Int63n(1<<29)
		}
		was := peers
		if v := trackTCP(&peers[i], &peers[1-i], narrow(stray), false); v != verdictInvalid || peers != was {
			t.Fatalf("step %d: the tracker passes the stray segment %+v, verdict %d", step, stray, v)
		}
	}
}
