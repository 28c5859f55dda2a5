// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

const (
	msec = 1_000_000 // nanoseconds
	// mine and theirs are discriminators
	mine, theirs = 0x11111111, 0x22222222
)

var fast = Config{MinTx: 200_000, MinRx: 200_000, Multiplier: 4}

// in returns a session that is in this state.
func in(state State) *Session {
	s := &Session{}
	s.Begin(fast, mine, 1)
	s.State = state
	if state > Down {
		s.Theirs = theirs
	}
	return s
}

func from(state State) *Packet {
	return &Packet{State: state, Multiplier: 3, Mine: theirs, Yours: mine, MinTx: 100_000, MinRx: 100_000}
}

// TestStates has the state machine of RFC 5880 section 6.8.6 as a table: the state, the state in the
// received packet, and the state afterwards.
func TestStates(t *testing.T) {
	for _, c := range []struct{ state, received, want State }{
		{Down, AdminDown, Down}, {Down, Down, Init}, {Down, Init, Up}, {Down, Up, Down},
		{Init, AdminDown, Down}, {Init, Down, Init}, {Init, Init, Up}, {Init, Up, Up},
		{Up, AdminDown, Down}, {Up, Down, Down}, {Up, Init, Up}, {Up, Up, Up},
	} {
		s := in(c.state)
		accepted, answer := s.Receive(from(c.received), 5)
		if s.State != c.want || !accepted || answer != (c.state != c.want) {
			t.Errorf("%v receives %v: %v accepted %v answer %v, want %v", c.state, c.received, s.State, accepted, answer, c.want)
		}
		wantDiag := NoDiagnostic
		if c.state > Down && c.want == Down {
			wantDiag = NeighborSignalDown
		}
		if s.Diag != wantDiag {
			t.Errorf("%v receives %v: diagnostic %v, want %v", c.state, c.received, s.Diag, wantDiag)
		}
	}
}

// Packets of other sessions change nothing. Above all, a forged packet without a discriminator cannot
// end a session.
func TestForeignPackets(t *testing.T) {
	restarted := from(Down)
	restarted.Mine, restarted.Yours = 0x33333333, 0
	forgotten := from(Down)
	forgotten.Yours = 0
	other := from(Down)
	other.Yours = mine + 1
	for _, c := range []struct {
		name   string
		state  State
		packet *Packet
		want   State
		taken  bool
	}{
		{"restarted, up", Up, restarted, Up, false},
		{"restarted, init", Init, restarted, Init, true},
		{"restarted, down", Down, restarted, Init, true},
		{"remote expired, up", Up, forgotten, Down, true},
		{"another session", Up, other, Up, false},
		{"another session, down", Down, other, Down, false},
	} {
		s := in(c.state)
		before := *s
		taken, _ := s.Receive(c.packet, 5)
		if taken != c.taken || s.State != c.want || !taken && *s != before {
			t.Errorf("%s: accepted %v, state %v", c.name, taken, s.State)
		}
	}
}

// pair is two sessions, connected by a link that takes 1 ms. lost makes the link lose the packets of
// one direction.
type pair struct {
	ends   [2]Session
	lost   [2]bool // loses the packets that this end sends
	now    uint64
	wire   []flight
	fast   int // shortest time in ms between two periodic packets of an end that is up
	lastTx [2]uint64
}

type flight struct {
	to   int
	due  uint64
	data [Length]byte
}

func newPair(a, b Config) *pair {
	p := &pair{now: msec, fast: 1 << 30}
	p.ends[0].Begin(a, mine, p.now)
	p.ends[1].Begin(b, theirs, p.now)
	return p
}

func (p *pair) send(end int, packet Packet) {
	f := flight{to: 1 - end, due: p.now + msec}
	packet.Put(f.data[:])
	if !p.lost[end] {
		p.wire = append(p.wire, f)
	}
}

// run advances the time by ms milliseconds.
func (p *pair) run(t *testing.T, ms int) {
	t.Helper()
	for range ms {
		p.now += msec
		arrived := p.wire
		p.wire = nil
		for _, f := range arrived {
			packet, ok := Parse(f.data[:])
			if !ok {
				t.Fatalf("% x", f.data)
			}
			if _, answer := p.ends[f.to].Receive(&packet, p.now); answer {
				p.send(f.to, p.ends[f.to].Answer(&packet))
			}
		}
		for end := range p.ends {
			if s := &p.ends[end]; s.Tick(p.now) {
				p.send(end, s.Packet())
				if s.State == Up && !s.polling {
					p.fast = min(p.fast, int((p.now-p.lastTx[end])/msec))
				}
				p.lastTx[end] = p.now
			}
		}
	}
}

func (p *pair) states() string { return fmt.Sprint(p.ends[0].State, " ", p.ends[1].State) }

// Two sessions come up and agree on intervals. If one end falls silent, the other notices it within
// the detection time but not much earlier, and tells it. Both come up again.
func TestPair(t *testing.T) {
	p := newPair(fast, Config{MinTx: 100_000, MinRx: 300_000, Multiplier: 3})
	p.run(t, 3000)
	if p.states() != "up up" {
		t.Fatal(p.states())
	}
	if p.ends[0].polling || p.ends[1].polling {
		t.Error("a poll sequence has not ended")
	}
	// End 0 may send every 200 ms, and end 1 receives every 300 ms. End 1 sends every 200 ms.
	if a, b := p.ends[0].interval(), p.ends[1].interval(); a != 300*msec || b != 200*msec {
		t.Errorf("intervals %d and %d ns", a, b)
	}
	if a, b := p.ends[0].DetectionNS(), p.ends[1].DetectionNS(); a != 600*msec || b != 1200*msec {
		t.Errorf("detection times %d and %d ns", a, b)
	}
	p.run(t, 20_000)
	if p.states() != "up up" || p.fast < 140 {
		t.Errorf("%s, packets %d ms apart", p.states(), p.fast)
	}
	p.lost[1] = true // end 0 hears nothing, end 1 hears everything
	p.run(t, 400)
	if p.states() != "up up" {
		t.Errorf("%s after two lost packets of three", p.states())
	}
	p.run(t, 205)
	if p.states() != "down down" {
		t.Fatal(p.states())
	}
	if a, b := p.ends[0].Diag, p.ends[1].Diag; a != DetectionExpired || b != NeighborSignalDown {
		t.Errorf("diagnostics %v and %v", a, b)
	}
	p.run(t, 3000)
	if p.states() != "down init" {
		t.Errorf("%s with one direction lost", p.states())
	}
	p.lost[1] = false
	p.run(t, 3000)
	if p.states() != "up up" {
		t.Error(p.states())
	}
}

// A remote that restarts has a new discriminator. The session ends because the old discriminator is
// silent, and comes up with the new one.
func TestRestartedRemote(t *testing.T) {
	p := newPair(fast, fast)
	p.run(t, 3000)
	p.ends[1].Begin(fast, 0x44444444, p.now)
	p.run(t, 500)
	if p.ends[0].State != Up {
		t.Error("a packet without the session's discriminator ended the session")
	}
	p.run(t, 4000)
	if p.states() != "up up" || p.ends[0].Theirs != 0x44444444 {
		t.Error(p.states())
	}
}

// The intervals change while the session is up. The session does not end, and the change takes effect
// when the remote has confirmed it.
func TestReconfigure(t *testing.T) {
	p := newPair(fast, fast)
	p.run(t, 3000)
	for _, ms := range []uint32{900, 50, 1500, 200} {
		p.ends[0].Configure(Config{MinTx: ms * 1000, MinRx: ms * 1000, Multiplier: 3})
		if s := &p.ends[0]; s.DetectionNS() < 3*200*msec {
			t.Errorf("%d ms: detection %d ns before the remote knows", ms, s.DetectionNS())
		}
		for range 80 {
			p.run(t, 100)
			if p.states() != "up up" {
				t.Fatalf("%d ms: %s", ms, p.states())
			}
		}
		if s := &p.ends[0]; s.polling || s.usedTx != ms*1000 || s.usedRx != ms*1000 {
			t.Errorf("%d ms: in effect %d %d, polling %v", ms, s.usedTx, s.usedRx, s.polling)
		}
	}
}

// The owner of a session has not run for seconds. Then it finds that its remote is up.
func TestResume(t *testing.T) {
	p := newPair(fast, fast)
	p.run(t, 3000)
	s := p.ends[0]
	late := p.now + 5_000*msec
	resumed, postponed := s, s
	resumed.Resume(late)
	postponed.Postpone(5_000 * msec)
	for name, s := range map[string]*Session{"resumed": &resumed, "postponed": &postponed} {
		if s.Tick(late); s.State != Up {
			t.Errorf("%s: %v", name, s.State)
		}
		if s.Tick(late + 801*msec); s.State != Down {
			t.Errorf("%s: %v after the detection time", name, s.State)
		}
	}
	if s.Tick(late); s.State != Down {
		t.Error("the remote was silent")
	}
}

// On a link that loses nothing, two sessions come up whatever forged packets arrive.
func TestForgeries(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		p := newPair(fast, fast)
		for range 400 {
			p.run(t, 10)
			forged := Packet{
				State: State(r.IntN(4)), Flags: uint8(r.IntN(64)), Multiplier: uint8(r.IntN(256)), Mine: r.Uint32(), Yours: r.Uint32() * uint32(r.IntN(2)),
				MinTx: r.Uint32(), MinRx: r.Uint32(),
			}
			p.ends[r.IntN(2)].Receive(&forged, p.now)
		}
		up := p.states()
		p.run(t, 4000)
		if p.states() != "up up" {
			t.Fatalf("%s, then %s", up, p.states())
		}
	}
}

// A flood of greetings (packets without the session's discriminator) with random discriminators does
// not keep a session down. Many of them arrive before each packet of the remote. None of the remote's
// own greetings arrives, because the flood uses up the owner's limit.
func TestFloodOfGreetings(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := newPair(fast, fast)
	for range 4000 {
		p.wire = slices.DeleteFunc(p.wire, func(f flight) bool {
			packet, _ := Parse(f.data[:])
			return f.to == 0 && packet.Yours == 0
		})
		for range 3 {
			forged := Packet{State: State(r.IntN(2)), Multiplier: 1, Mine: r.Uint32() | 1, MinTx: r.Uint32(), MinRx: r.Uint32()}
			p.ends[0].Receive(&forged, p.now)
		}
		p.run(t, 1)
	}
	if p.states() != "up up" {
		t.Error(p.states())
	}
}

// strictPeer follows RFC 5880 to the letter. It believes any packet for its address. It sends only
// when its interval has passed, except for a packet with the Final bit.
type strictPeer struct {
	state  State
	yours  uint32
	nextTx uint64
	flaps  int
}

func (p *strictPeer) receive(in *Packet, now uint64) (out *Packet) {
	if in.Yours != 0 && in.Yours != theirs || in.Yours == 0 && in.State > Down {
		return nil
	}
	p.yours = in.Mine
	switch {
	case p.state == Down && in.State == Down:
		p.state = Init
	case p.state == Down && in.State == Init, p.state == Init && in.State >= Init:
		p.state = Up
	case p.state == Up && in.State <= Down:
		p.state = Down
		p.flaps++
	}
	if in.Polls() {
		f := p.packet()
		f.Flags |= flagFinal
		return &f
	}
	return nil
}

func (p *strictPeer) packet() Packet {
	minTx := uint32(1_000_000)
	if p.state == Up {
		minTx = 100_000
	}
	return Packet{State: p.state, Multiplier: 3, Mine: theirs, Yours: p.yours, MinTx: minTx, MinRx: 1_000_000}
}

// A session comes up and stays up with a peer that does not answer at once, wherever both are in their
// intervals.
func TestStrictPeer(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var s Session
		now := uint64(msec)
		s.Begin(fast, mine, now)
		peer := strictPeer{state: Down, nextTx: now + r.Uint64N(1000)*msec}
		deliver := func(p Packet) {
			for out := &p; out != nil; {
				answer := peer.receive(out, now)
				if out = nil; answer == nil {
					break
				}
				if _, again := s.Receive(answer, now); again {
					a := s.Answer(answer)
					out = &a
				}
			}
		}
		for ms := range 20_000 {
			now += msec
			if s.Tick(now) {
				deliver(s.Packet())
			}
			if now >= peer.nextTx {
				p := peer.packet()
				if _, answer := s.Receive(&p, now); answer {
					deliver(s.Answer(&p))
				}
				interval := uint64(1000)
				if peer.state == Up {
					interval = 200
				}
				peer.nextTx = now + (interval-r.Uint64N(interval/4))*msec
			}
			if ms > 6000 && (s.State != Up || peer.state != Up) {
				t.Fatalf("%v and %v after %d ms", s.State, peer.state, ms)
			}
		}
		if peer.flaps > 0 {
			t.Fatalf("the peer went down %d times", peer.flaps)
		}
	}
}

// A session that is turned off tells its remote.
func TestDisable(t *testing.T) {
	p := newPair(fast, fast)
	p.run(t, 3000)
	p.ends[0].Disable(p.now)
	last := p.ends[0].Packet()
	if _, answer := p.ends[1].Receive(&last, p.now); answer && p.ends[1].Answer(&last).State != Down {
		t.Error("the remote's answer is not down")
	}
	if s := &p.ends[1]; s.State != Down || s.TheirState != AdminDown || s.TheirDiag != AdministrativelyDown || s.Diag != NeighborSignalDown {
		t.Errorf("the remote has %+v", s)
	}
}

// A forged packet asks for the longest intervals. A session that is not up comes up within 33 seconds
// nevertheless.
func TestForgedIntervals(t *testing.T) {
	for _, minRx := range []uint32{0, 1<<32 - 1} {
		p := newPair(fast, fast)
		for end := range p.ends {
			forged := Packet{State: Down, Multiplier: 255, Mine: 7, MinTx: 1<<32 - 1, MinRx: minRx}
			if taken, _ := p.ends[end].Receive(&forged, p.now); !taken {
				t.Fatal("a remote may restart before the session is up")
			}
		}
		p.run(t, 33_000)
		if p.states() != "up up" {
			t.Errorf("required interval %d: %s", minRx, p.states())
		}
	}
}

// A session does not allocate memory, neither when it sends nor when it receives.
func TestAllocations(t *testing.T) {
	for _, kind := range []AuthType{NoAuth, MeticulousKeyedSHA1} {
		s, remote := in(Up), in(Up)
		s.Configure(keyed(kind, "secret"))
		remote.Configure(keyed(kind, "secret"))
		var b [MaxLength]byte
		n := remote.Encode(&b, *from(Up))
		now := uint64(1)
		if n := testing.AllocsPerRun(100, func() {
			now += 300 * msec
			p, ok := Parse(b[:n])
			if taken, _ := s.Receive(&p, now); !ok || !s.Authentic(b[:n], now) || !taken || !s.Tick(now) {
				t.Fatal("no packet")
			}
			s.Encode(&b, s.Packet())
			n = remote.Encode(&b, *from(Up))
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// A silent remote has failed. Packets without the session's discriminator do not end this failure,
// because anybody can forge them.
func TestForgeriesAfterSilence(t *testing.T) {
	for _, state := range []State{AdminDown, Down, Init, Up} {
		s := in(Up)
		s.Receive(from(Up), 5)
		now := 5 + s.DetectionNS()
		s.Tick(now)
		s.Receive(&Packet{State: Down, Multiplier: 3, Mine: 7, MinTx: 100_000, MinRx: 100_000}, now)
		s.Receive(&Packet{State: state, Diag: AdministrativelyDown, Multiplier: 3, Mine: 8, MinTx: 100_000, MinRx: 100_000}, now)
		if s.Diag != DetectionExpired || s.TheirState != Down || s.TheirDiag == AdministrativelyDown {
			t.Errorf("after a forged %v: %v, remote %v (%v)", state, s.Diag, s.TheirState, s.TheirDiag)
		}
		s.Receive(from(Init), now+1)
		if s.State != Up || s.Diag != NoDiagnostic {
			t.Errorf("after the remote's own packet: %v, %v", s.State, s.Diag)
		}
	}
}

// A remote that has turned BFD off has not failed. Neither its silence, nor a greeting, which anybody
// can forge, nor its return makes it count as failed.
func TestNoFailureAfterAdminDown(t *testing.T) {
	off := func() (s *Session, now uint64) {
		s = in(Up)
		s.Receive(from(Up), 5)
		s.Receive(from(AdminDown), 6)
		if s.State != Down || s.Diag != NeighborSignalDown || s.TheirState != AdminDown {
			t.Fatalf("after AdminDown: %v, %v, remote %v", s.State, s.Diag, s.TheirState)
		}
		return s, 6 + s.DetectionNS()
	}
	s, now := off()
	s.Tick(now)
	s.Receive(&Packet{State: Down, Multiplier: 3, Mine: 7, MinTx: 100_000, MinRx: 100_000}, now)
	if s.State != Init || s.Diag != NoDiagnostic {
		t.Errorf("after silence and a greeting: %v, %v", s.State, s.Diag)
	}
	s, _ = off()
	s.Receive(from(Down), 7)
	if s.State != Init || s.Diag != NoDiagnostic {
		t.Errorf("after the remote's return: %v, %v", s.State, s.Diag)
	}
	s = in(Up)
	s.Receive(from(Up), 5)
	now = 5 + s.DetectionNS()
	s.Tick(now)
	s.Receive(from(AdminDown), now)
	s.Tick(now + s.DetectionNS())
	if s.Diag != NoDiagnostic {
		t.Errorf("after a failure and AdminDown: %v", s.Diag)
	}
}

// Anybody can forge a greeting. If silence follows a greeting, a remote that has never spoken BFD does
// not count as failed. If a remote has failed, a greeting does not end the failure.
func TestNoFailureAfterAGreeting(t *testing.T) {
	greeting := &Packet{State: Down, Multiplier: 3, Mine: 7, MinTx: 100_000, MinRx: 100_000}
	for _, failed := range []bool{false, true} {
		s, now, want := in(Down), uint64(5), NoDiagnostic
		if failed {
			s = in(Up)
			s.Receive(from(Up), 5)
			now, want = 5+s.DetectionNS(), DetectionExpired
			s.Tick(now)
		}
		s.Receive(greeting, now)
		if s.State != Init {
			t.Fatalf("after a greeting: %v", s.State)
		}
		s.Tick(now + greetNS)
		if s.State != Down || s.Diag != want {
			t.Errorf("after the silence: %v, %v; want %v", s.State, s.Diag, want)
		}
	}
}
