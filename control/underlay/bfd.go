// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"weft/bfd"
	"weft/control/loop"
	"weft/datapath"
	"weft/internal/clock"
	"weft/packet"
)

// The first worker runs the BFD sessions with remotes of tunnels (datapath/bfd.go, RFC 5880). The
// control process begins and ends them, gives them templates of outer headers, and reads their
// state from shared memory.

const (
	// bfdInterval is the interval at which the control process reads the state of sessions.
	bfdInterval = 50 * time.Millisecond
	// bfdGrace is how long the remote of a new session is RemoteWaiting instead of RemoteDown. The session
	// needs some time to come up, because it sends only one packet a second until then.
	bfdGrace = 3 * time.Second
)

// Session declares a BFD session with the remote of a tunnel.
type Session struct {
	Tunnel
	UDPPort uint16
	VNI     uint32
	Config  bfd.Config
	OneHop  bool // see datapath.BFDSession
}

// BFDState is the state of a BFD session as the worker has written it.
type BFDState struct {
	State, RemoteState           bfd.State
	Diagnostic, RemoteDiagnostic bfd.Diagnostic
	DetectionMS                  int           // silence after which the remote is down; 0: never heard
	Silence                      time.Duration // since the last packet; negative: never heard
	Received, Sent, Refused      uint64        // packets
	// counts of refused packets by cause, see datapath.BFDSession
	Guessed, Distant, Unauthentic, Doubtful uint64
	expired                                 bool // the detection time has passed since the last packet
}

// session is the state of a declared BFD session. Templates.mu guards it.
type session struct {
	Session
	index         uint32 // in the workers' table of sessions
	discriminator uint32 // for a session that the engine does not run yet
	begun         time.Time
	sent          datapath.BFDSet // last settings sent to the present engine; zero: none
}

// Supervise replaces the BFD sessions of all ports by those in list. Sessions beyond
// datapath.MaxBFD do not start, and their remotes are RemoteDown. It must be called after
// SetPorts.
func (t *Templates) Supervise(list []Session) {
	if ended := t.setSessions(list); ended {
		t.refreshWatches(true) // the state of the remotes of ended sessions no longer depends on BFD
	}
	loop.Notify(t.supervised)
}

// setSessions begins the sessions of list that do not run, and ends the others. It reports
// whether it has ended any.
func (t *Templates) setSessions(list []Session) (ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted := map[Tunnel]bool{}
	for _, d := range list {
		wanted[d.Tunnel] = true
	}
	for key, s := range t.sessions {
		if !wanted[key] {
			ended = true
			delete(t.sessions, key)
			t.endSession(s.index)
		}
	}
	used := map[uint32]bool{}
	for _, s := range t.sessions {
		used[s.index] = true
	}
	for _, d := range list {
		s := t.sessions[d.Tunnel]
		if s == nil {
			s = &session{Session: d, index: t.sessionIndex(d.Tunnel, used), discriminator: randomDiscriminator(), begun: time.Now()}
			used[s.index] = true
			t.sessions[d.Tunnel] = s
		}
		s.Session = d
	}
	for i := range t.rows {
		if t.rows[i].Port != 0 && !used[uint32(i)] { // an earlier control process began this session, and nobody declares it now
			t.endSession(uint32(i))
		}
	}
	t.syncSessions()
	t.readSessions()
	return ended
}

func randomDiscriminator() uint32 {
	var b [4]byte
	rand.Read(b[:]) // rand.Read never fails
	return binary.LittleEndian.Uint32(b[:])
}

// sessionIndex returns the index at which the engine already runs the session. If it does not
// run it, the result is a free index, or datapath.MaxBFD if none is free. Indexes in "used" are
// taken.
func (t *Templates) sessionIndex(key Tunnel, used map[uint32]bool) uint32 {
	free := uint32(datapath.MaxBFD)
	for i := range uint32(datapath.MaxBFD) {
		if used[i] {
			continue
		}
		if int(i) < len(t.rows) {
			if r := &t.rows[i]; r.Port == key.Port && r.Remote == key.Remote.As16() {
				return i
			} else if r.Port != 0 {
				continue
			}
		}
		free = min(free, i)
	}
	return free
}

func (t *Templates) endSession(index uint32) {
	if t.rings != nil && index < datapath.MaxBFD {
		t.rings.Push(0, datapath.AppendBFD(nil, index, &datapath.BFDSet{}))
	}
}

// syncSessions sends the workers the sessions whose settings have changed, and makes the
// templates of their packets.
func (t *Templates) syncSessions() {
	if t.rings == nil {
		return
	}
	for _, s := range t.sessions {
		if s.index >= datapath.MaxBFD {
			continue
		}
		template, reason := t.template(s.Tunnel, s.UDPPort)
		if reason != packet.DropNone {
			template = MaxTemplates // no worker has a template of this index, so the session sends nothing
		}
		set := datapath.BFDSet{Port: s.Port, Template: template, VNI: s.VNI, Remote: s.Remote.As16(), Config: s.Config, OneHop: s.OneHop, Discriminator: s.discriminator}
		if set != s.sent {
			s.sent = set
			t.rings.Push(0, datapath.AppendBFD(nil, s.index, &set))
		}
	}
}

// adoptRows makes t read the BFD sessions from the shared memory of the engine to which w belongs. If
// takeOver is true, this is a new engine. Then adoptRows first copies the sessions of the previous engine,
// which has ended, into the memory, so that the new one continues them.
func (t *Templates) adoptRows(w commandRings, takeOver bool) {
	var rows []datapath.BFDSession
	if shared := w.Shared(); len(shared) > 0 {
		rows = shared[0].BFD
	}
	if takeOver {
		copy(rows, t.rows)
	}
	t.rows = rows
	for _, s := range t.sessions {
		s.sent = datapath.BFDSet{}
	}
}

// FollowSessions updates the state of the remotes that have sessions, until ctx ends. It sleeps
// while there is no session.
func (t *Templates) FollowSessions(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.supervised:
		}
		if !loop.Sleep(ctx, bfdInterval) {
			return
		}
		t.mu.Lock()
		t.readSessions()
		if len(t.sessions) > 0 {
			loop.Notify(t.supervised)
		}
		t.mu.Unlock()
	}
}

// readSessions updates the state of the remotes that have a session from the engine's memory.
func (t *Templates) readSessions() {
	ports := map[uint32]bool{}
	for key := range t.sessions {
		ports[key.Port] = true
	}
	for port := range ports {
		for _, w := range t.watches[port] {
			e := t.byKey[w.Tunnel]
			if e == nil || t.sessions[w.Tunnel] == nil {
				continue
			}
			before := w.state.State
			w.state = t.stateOf(e)
			t.logState(w, before)
		}
	}
}

// superviseState changes st, the state of a remote, as the remote's BFD session requires. A remote with a
// usable path is RemoteUp only if its session is up.
func (t *Templates) superviseState(key Tunnel, st *RemoteState) {
	s := t.sessions[key]
	if s == nil {
		return
	}
	if s.index >= datapath.MaxBFD {
		st.State, st.Reason = RemoteDown, fmt.Sprintf("no BFD: the switch has more than %d sessions", datapath.MaxBFD)
		return
	}
	if int(s.index) >= len(t.rows) || t.rows[s.index].Port != s.Port || t.rows[s.index].Remote != s.Remote.As16() {
		if st.State == RemoteUp {
			st.State, st.Reason = RemoteWaiting, "BFD begins"
		}
		return
	}
	r := &t.rows[s.index]
	b := &BFDState{
		State: r.State, RemoteState: r.TheirState, Diagnostic: r.Diag, RemoteDiagnostic: r.TheirDiag, Silence: -1,
		Received: r.Received, Sent: r.Sent, Refused: r.Refused,
		Guessed: r.Guessed, Distant: r.Distant, Unauthentic: r.Unauthentic, Doubtful: r.Doubtful,
	}
	if heard := r.HeardNS; heard != 0 {
		b.Silence = time.Duration(max(clock.Monotonic(), heard) - heard)
		b.expired = r.ExpiryNS == 0
		b.DetectionMS = int(r.DetectionNS() / 1_000_000)
	}
	st.BFD = b
	if st.State == RemoteUp && b.State != bfd.Up {
		st.State, st.Reason = RemoteDown, b.reason(key)
		if b.Diagnostic == bfd.NoDiagnostic && time.Since(s.begun) < bfdGrace {
			st.State = RemoteWaiting
		}
	}
}

// lost reports whether the BFD session has failed, so that frames do not reach the remote. Either the
// remote has fallen silent, or it says that it receives nothing. A remote that never sent a packet, or
// that has turned BFD off, is not lost. A lost remote stays lost until its session is Up, or until it
// turns BFD off with the session's discriminator. Before a remote falls silent, it may say that it
// receives nothing, or that it turns BFD off. Its last diagnostic tells the two apart.
func (b *BFDState) lost() bool {
	if b.State == bfd.Up || b.RemoteState == bfd.AdminDown {
		return false
	}
	switch b.Diagnostic {
	case bfd.DetectionExpired:
		return true
	case bfd.NeighborSignalDown:
		return b.RemoteState == bfd.Down && (!b.expired || b.RemoteDiagnostic == bfd.DetectionExpired)
	}
	return false
}

// Lost returns the watched remotes of a port whose BFD session has failed. If the sessions of all watched
// remotes have failed, it returns nil, so that the switch continues to use them all.
func (t *Templates) Lost(port uint32) (lost []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.watches[port] {
		if w.state.BFD != nil && w.state.BFD.lost() {
			lost = append(lost, w.Remote)
		}
	}
	if len(lost) == len(t.watches[port]) {
		return nil
	}
	return lost
}

// reason returns a text that says why a session is not up. The text must not change while the state stays
// the same, because each new text causes an event about the port.
func (b *BFDState) reason(key Tunnel) string {
	switch {
	case b.Silence < 0:
		return "no BFD from " + key.Remote.String() + " so far"
	case b.RemoteState == bfd.AdminDown:
		return fmt.Sprintf("%s has turned BFD off", key.Remote)
	case b.expired:
		return fmt.Sprintf("no BFD from %s within %d ms", key.Remote, b.DetectionMS)
	case b.State == bfd.Down && b.Diagnostic == bfd.NeighborSignalDown:
		return fmt.Sprintf("%s signals BFD %s: %s", key.Remote, b.RemoteState, b.RemoteDiagnostic)
	}
	return fmt.Sprintf("BFD with %s is %s", key.Remote, b.State)
}
