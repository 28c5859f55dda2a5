// SPDX-License-Identifier: Apache-2.0

package bfd

const (
	microsecond = 1000 // in nanoseconds
	// slowTx is the least interval in microseconds at which a session that is not Up
	// sends (RFC 5880 section 6.8.3).
	slowTx = 1_000_000
	// maxTheirs limits the intervals, in microseconds, that a remote may ask for. maxUnproven limits
	// the detection time, in nanoseconds, of a session that is not Up. Without these limits one forged
	// packet could silence a session for an hour.
	maxTheirs   = 10_000_000
	maxUnproven = 30_000_000_000
	// greetNS is the time in nanoseconds for which a packet that does not have this session's
	// discriminator keeps the session in the state Init. A remote that has no session yet sends such
	// packets once a second.
	greetNS = 3_000_000_000
)

// Config is the configuration of a session.
type Config struct {
	// MinTx and MinRx are the desired transmission interval and the required receive
	// interval in microseconds.
	MinTx, MinRx uint32
	Multiplier   uint8 // detection multiplier, at least 1
	Auth         Auth
}

// Session is one BFD session. It has no pointers, so it may be in shared memory. Times are in
// nanoseconds of the caller's clock. Begin initializes a session; the zero value is not one.
type Session struct {
	TxNS     uint64 // time of the next periodic packet
	ExpiryNS uint64 // time at which the remote counts as silent; 0: nothing expected
	HeardNS  uint64 // time of the last packet that the session accepted; 0: never
	SinceNS  uint64 // time of the last change of State
	random   uint64 // state of a xorshift generator, not 0
	// heardSequence is the sequence number of the last authentic packet from the remote, and sequenceNS
	// the time of this packet; 0: no packet yet. sequence is the sequence number of the last packet
	// sent.
	sequenceNS              uint64
	sequence, heardSequence uint32
	// Mine and Theirs are the discriminators. Theirs is 0 until a packet with Mine has come
	// from the remote.
	Mine, Theirs uint32
	MinTx, MinRx uint32 // configuration
	// usedTx and usedRx are the intervals in effect. They differ from the configuration
	// until the remote has confirmed a change (RFC 5880 section 6.8.3).
	usedTx, usedRx              uint32
	theirMinTx, theirMinRx      uint32
	Multiplier, theirMultiplier uint8
	State, TheirState           State
	Diag, TheirDiag             Diagnostic
	polling                     bool // set Poll in packets until a packet with Final arrives
	demand                      bool // the remote wants no periodic packets
	auth                        Auth
}

// Begin starts a session. mine is its discriminator, not 0, unique on this system and
// hard to guess.
func (s *Session) Begin(c Config, mine uint32, now uint64) {
	*s = Session{
		TxNS: now, SinceNS: now, random: uint64(mine)<<32 | 1, Mine: mine, State: Down, TheirState: Down,
		theirMinRx: 1, MinTx: c.MinTx, MinRx: c.MinRx, usedTx: c.MinTx, usedRx: c.MinRx, Multiplier: c.Multiplier,
		auth: c.Auth, sequence: mine * 0x9e3779b1,
	}
}

// Configure changes the configuration without a change of State.
func (s *Session) Configure(c Config) {
	if s.auth != c.Auth {
		s.auth, s.sequenceNS = c.Auth, 0
	}
	if c.MinTx == s.MinTx && c.MinRx == s.MinRx && c.Multiplier == s.Multiplier {
		return
	}
	s.MinTx, s.MinRx, s.Multiplier = c.MinTx, c.MinRx, c.Multiplier
	if s.State != Up {
		s.usedTx, s.usedRx = c.MinTx, c.MinRx
		return
	}
	s.usedTx, s.usedRx, s.polling = min(s.usedTx, c.MinTx), max(s.usedRx, c.MinRx), true
}

// Resume continues a session whose caller was not running until now. The remote gets the whole
// detection time again before it counts as down.
func (s *Session) Resume(now uint64) {
	s.TxNS = now
	if s.ExpiryNS != 0 {
		s.ExpiryNS = now + s.DetectionNS()
	}
}

// Postpone moves the end of the detection time by ns nanoseconds, because the caller could not receive
// packets for that long.
func (s *Session) Postpone(ns uint64) {
	if s.ExpiryNS != 0 {
		s.ExpiryNS += ns
	}
}

// DetectionNS returns the time in nanoseconds after which a silent remote is down.
func (s *Session) DetectionNS() uint64 {
	return uint64(s.theirMultiplier) * uint64(max(s.usedRx, s.theirMinTx)) * microsecond
}

// Receive handles a packet that may belong to the session (RFC 5880 section 6.8.6). accepted is false
// if the session refuses the packet; Receive has then changed nothing. If answer is true, the caller
// must send the result of Answer at once.
//
// A packet whose field Yours is 0 comes from a system that does not know this session's discriminator.
// If its own discriminator is that of the known remote, Receive handles it like any other packet.
// Otherwise anybody may have sent it. The method greet handles it as long as the session is not Up; an
// Up session refuses it. Without this rule, anybody could end the session. So the session notices only
// by silence that its remote has restarted.
func (s *Session) Receive(p *Packet, now uint64) (accepted, answer bool) {
	switch {
	case p.Yours != 0 && p.Yours != s.Mine:
		return false, false
	case p.Yours == 0 && p.Mine != s.Theirs:
		return s.State != Up, s.State != Up && s.greet(p, now)
	}
	if p.State != AdminDown {
		s.forgive()
	}
	s.Theirs, s.TheirState, s.TheirDiag = p.Mine, p.State, p.Diag
	s.theirMinTx, s.theirMinRx, s.theirMultiplier = min(p.MinTx, maxTheirs), min(p.MinRx, maxTheirs), p.Multiplier
	s.demand = p.Flags&flagDemand != 0
	if s.polling && p.Flags&flagFinal != 0 {
		s.polling, s.usedTx, s.usedRx = false, s.MinTx, s.MinRx
	}
	s.HeardNS = now
	former := s.State
	switch s.State {
	case Down:
		switch p.State {
		case Down:
			s.change(Init, s.Diag, now) // Open vSwitch keeps the diagnostic, too
		case Init:
			s.change(Up, NoDiagnostic, now)
		}
	case Init:
		switch p.State {
		case AdminDown:
			s.change(Down, NeighborSignalDown, now)
		case Init, Up:
			s.change(Up, NoDiagnostic, now)
		}
	case Up:
		if p.State <= Down {
			s.change(Down, NeighborSignalDown, now)
		}
	}
	s.ExpiryNS = now + s.DetectionNS()
	if s.State != Up {
		s.ExpiryNS = min(s.ExpiryNS, now+maxUnproven)
	}
	if changed := s.State != former; changed || s.TxNS > now+s.interval() {
		s.schedule(now)
		return true, changed || p.Polls() // a new state is sent before its turn (RFC 5880 section 6.8.7)
	}
	return true, p.Polls()
}

// greet handles a packet whose sender does not know the session's discriminator. Anybody can forge such
// packets, as often as they like. The packet can move the session from Down to Init, but no further,
// and it does not change the remote's discriminator and intervals. The periodic packets still say Down.
// If answer is true, the caller must send an answer. It has the session's discriminator, and only the
// true remote receives it. The true remote then sends a packet with this discriminator.
//
// If the session has failed before, its diagnostic and the remote's state and diagnostic stay. So a
// forged packet cannot hide the failure. After a failure, the remote must know the session's
// discriminator to say that BFD is turned off.
func (s *Session) greet(p *Packet, now uint64) (answer bool) {
	s.HeardNS = now
	if s.Theirs == 0 && s.Diag == NoDiagnostic {
		s.TheirState, s.TheirDiag = p.State, p.Diag
	}
	if p.State != Down {
		return false
	}
	s.ExpiryNS = max(s.ExpiryNS, now+greetNS)
	if s.State == Down {
		s.change(Init, s.Diag, now)
		// The next periodic packet says Down. If the answer has moved the remote to Up, this packet
		// would end the remote's session. So it is delayed until the remote's next packet has probably
		// come.
		s.TxNS = now + 2*slowTx*microsecond
	}
	return true
}

// greeted reports whether the session is in Init only because of packets whose senders do not know its
// discriminator.
func (s *Session) greeted() bool { return s.State == Init && s.Theirs == 0 }

// forgive clears the diagnostic of a session that is Down because its remote has turned BFD off, which
// is no failure. Otherwise the session would look failed after the next forged packet (see greet).
// Receive and Tick call forgive before they change TheirState.
func (s *Session) forgive() {
	if s.State == Down && s.TheirState == AdminDown {
		s.Diag = NoDiagnostic
	}
}

func (s *Session) change(to State, diag Diagnostic, now uint64) {
	s.State, s.Diag, s.SinceNS = to, diag, now
	s.usedTx, s.usedRx = s.MinTx, s.MinRx
	// The change to Up replaces the interval slowTx by MinTx. The remote must confirm it.
	s.polling = to == Up && s.MinTx < slowTx
}

// Tick changes the state to Down if the remote was silent for the detection time. send is true if the
// periodic packet is due now: the caller must send the result of Packet. Tick then also sets the time
// of the next one.
func (s *Session) Tick(now uint64) (send bool) {
	if s.ExpiryNS != 0 && now >= s.ExpiryNS {
		s.forgive()
		diag := DetectionExpired
		if s.greeted() {
			diag = s.Diag // anybody can forge a greeting, so the silence after it is no failure
		}
		s.ExpiryNS, s.Theirs, s.theirMinRx, s.demand = 0, 0, 1, false
		s.TheirState = Down
		if s.State != Down {
			s.change(Down, diag, now)
			s.TxNS = now
		}
	}
	if now < s.TxNS {
		return false
	}
	s.schedule(now)
	return s.theirMinRx != 0 && (!s.demand || s.polling || s.State != Up || s.TheirState != Up)
}

// schedule sets the time of the next packet: now plus the negotiated interval, minus a random part of
// up to a quarter. With a multiplier of 1 the part is at least a tenth (RFC 5880 section 6.8.7).
func (s *Session) schedule(now uint64) {
	interval := s.interval()
	s.random ^= s.random << 13
	s.random ^= s.random >> 7
	s.random ^= s.random << 17
	part := s.random % (interval/4 + 1)
	if s.Multiplier == 1 {
		part = max(part, interval/10)
	}
	s.TxNS = now + interval - part
}

// interval returns the negotiated interval between two packets in nanoseconds.
func (s *Session) interval() uint64 {
	return uint64(max(s.desiredTx(s.usedTx), s.theirMinRx)) * microsecond
}

// desiredTx returns the send interval us, in microseconds, but at least slowTx while the session is not
// Up (RFC 5880 section 6.8.3).
func (s *Session) desiredTx(us uint32) uint32 {
	if s.State != Up {
		return max(us, slowTx)
	}
	return us
}

// Packet returns the periodic packet. Its state is Down instead of Init until the session has received a
// packet with its own discriminator. Only the true remote sees this packet, so only it can send one.
func (s *Session) Packet() Packet {
	p := Packet{
		Diag: s.Diag, State: s.State, Flags: flagCPI, Multiplier: s.Multiplier, Mine: s.Mine, Yours: s.Theirs,
		MinTx: s.desiredTx(s.MinTx), MinRx: s.MinRx,
	}
	if s.greeted() {
		p.State = Down
	}
	if s.polling {
		p.Flags |= flagPoll
	}
	return p
}

// Answer returns the packet that answers p. The caller has passed p to Receive before.
func (s *Session) Answer(p *Packet) Packet {
	a := s.Packet()
	a.State, a.Yours = s.State, p.Mine
	if p.Polls() {
		a.Flags = a.Flags&^flagPoll | flagFinal
	}
	return a
}

// Disable moves the session to AdminDown (RFC 5880 section 6.8.16). The caller then sends the result of
// Packet once more, so that the remote knows, and drops the session.
func (s *Session) Disable(now uint64) { s.change(AdminDown, AdministrativelyDown, now) }

// Polls reports whether the packet asks for an answer with the bit Final.
func (p *Packet) Polls() bool { return p.Flags&flagPoll != 0 }

// NextNS returns the time in nanoseconds at which the owner must call Tick.
func (s *Session) NextNS() uint64 {
	if s.ExpiryNS != 0 {
		return min(s.TxNS, s.ExpiryNS)
	}
	return s.TxNS
}
