// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"weft/internal/shm"
)

// Config is the configuration of a port's session.
type Config struct {
	Path string // path of the socket
	// Access says who may connect to the socket on which the session listens.
	Access SocketAccess
	// Client makes the session connect to a front end that listens (QEMU's
	// server=on). Without Client the session listens.
	Client bool
	// Queues is the number of queue pairs that the session offers to the guest, 1 to
	// MaxQueuePairs; 0 means 1.
	Queues int
	// MTU is the guest's MTU in bytes, without the Ethernet header; 0: not offered
	// and not limited.
	MTU int
	// NoOffloads makes the session not offer the offload features to the guest.
	NoOffloads bool
	// Memory counts the guest's mapped memory. nil: the session makes a GuestMemory in a pool of its own,
	// with DefaultMemoryLimits.
	Memory *GuestMemory
	// Forget makes the back end drop the Snapshots that it stores, and the duplicates
	// of descriptors in them. Close calls Forget before it closes the session's own
	// descriptors. nil: the back end stores no Snapshots.
	Forget func()
	Logger *slog.Logger // nil: no logging
}

// Backend runs the session's device. The control process implements it and passes the device on to the
// engine process. The session calls it from the goroutine of Run, without holding the session's lock.
type Backend interface {
	// Start passes a device to the engine: a DeviceSpec in JSON and its descriptors,
	// which are borrowed for the call. An error closes the connection. While the engine
	// restarts, Start returns nil; the back end later gets the device from
	// Session.Spec.
	Start(spec []byte, fds []int) error
	// Stop takes the device away from the engine. It returns the device's State, or
	// nothing if the engine has died. When Stop returns, no worker uses the guest's
	// memory.
	Stop() (state []byte, err error)
	// Changed tells the back end that it must store the parts that Session.Changes returns.
	Changed()
}

// startDelay is how long the front end must send nothing before the device starts. A
// front end sets up one ring after another, and each change of a running device would
// stop it.
const startDelay = time.Millisecond

// Session speaks vhost-user with one front end at a time, for one port. Apart from Break and Close, only
// the goroutine of Run changes it. mu protects its fields from readers in other goroutines.
type Session struct {
	cfg     Config
	backend Backend
	log     *slog.Logger
	memory  *GuestMemory  // account of the mapped and reserved memory
	budget  *rate.Limiter // message budget of the front end
	// true: the state has changed since the last call of Backend.Changed; only the goroutine of Run
	// uses this field
	changed bool
	refused string // text of the last refusal in the log; only the goroutine of Run uses this field
	// true: the connected front end has sent a message; only the goroutine of Run uses this field
	heard bool
	first time.Duration // firstMessageTimeout, or a shorter time in tests

	mu        sync.Mutex
	front     frontEnd
	stale     staleParts        // parts of the state that have changed since Changes returned them
	conn      *net.UnixConn     // nil: not connected
	listener  *net.UnixListener // nil in client mode
	running   bool              // the engine runs the device, or will run it after its restart
	resume    bool              // the next start takes the ring positions from guest memory
	closed    bool
	broken    string             // reason that Break got, until serve has handled it; empty: none
	end       context.CancelFunc // cancels Run
	drop      context.CancelFunc // cancels the present connection
	done      chan struct{}      // closed when Run returns; nil: Run was not called
	disposing chan struct{}      // closed when the work of the latest dispose has finished; nil: none yet
	lastError string
	connects  uint64
	breaks    uint64
	throttled uint64
}

// NewSession makes a session. A session in server mode listens when NewSession returns.
func NewSession(cfg Config, b Backend) (*Session, error) {
	s, err := newSession(cfg, b)
	if err != nil {
		return nil, err
	}
	if !cfg.Client {
		if s.listener, err = listen(cfg.Path, cfg.Access); err != nil {
			s.memory.close()
			return nil, err
		}
	}
	return s, nil
}

func newSession(cfg Config, b Backend) (*Session, error) {
	if cfg.Queues == 0 {
		cfg.Queues = 1
	}
	if cfg.Queues < 1 || cfg.Queues > MaxQueuePairs {
		return nil, fmt.Errorf("vhost: %d queues, expected 1 to %d", cfg.Queues, MaxQueuePairs)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Memory == nil {
		cfg.Memory = NewMemoryPool(DefaultMemoryLimits()).Guest(0)
	}
	return &Session{cfg: cfg, backend: b, log: cfg.Logger.With("socket", cfg.Path), memory: cfg.Memory,
		budget: newBudget(cfg.Queues), first: firstMessageTimeout, front: newFrontEnd(cfg.Queues), stale: newStaleParts(cfg.Queues)}, nil
}

// offered returns the virtio features with which GET_FEATURES is answered. The features of the control
// queue are among them, although the front end implements this queue: it offers the queue to the guest only
// if the back end offers the features.
func (s *Session) offered() uint64 {
	features := ringFeatures | FeatureProtocolFeatures | FeatureLogAll | FeatureControlQueue | FeatureControlRx | FeatureControlMAC |
		FeatureGuestAnnounce | FeatureNetStatus
	if !s.cfg.NoOffloads {
		features |= offloadFeatures
	}
	if s.cfg.Queues > 1 {
		features |= FeatureMultiQueue
	}
	if s.cfg.MTU > 0 {
		features |= FeatureNetMTU
	}
	return features
}

func (s *Session) offeredProtocol() uint64 {
	return ProtocolMultiQueue | ProtocolLogMemory | ProtocolRARP | ProtocolReplyAck | ProtocolMTU | ProtocolResetDevice | ProtocolMemorySlots | ProtocolStatus |
		ProtocolInflight
}

// Run serves front ends, one after another, until ctx is done or Close is called. When ctx is done,
// Run leaves the connection and the running device as they are: the next control process continues
// them from the parts of Snapshot. Close ends both.
func (s *Session) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	if s.closed || s.done != nil {
		s.mu.Unlock()
		return errors.New("vhost: session is closed or runs already")
	}
	s.end, s.done = cancel, make(chan struct{})
	defer close(s.done)
	s.mu.Unlock()
	pause := newBackoff()
	for ctx.Err() == nil {
		conn, err := s.connected(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.note(err)
				pause.wait(ctx)
			}
			continue
		}
		if s.spend(ctx, connectCost) != nil {
			break
		}
		started := s.serve(ctx, conn)
		if started {
			pause = newBackoff()
		}
		if ctx.Err() == nil && s.cfg.Client {
			pause.wait(ctx)
		}
	}
	return nil
}

// note stores an error for Status, and logs it if it differs from the last error.
func (s *Session) note(err error) {
	s.mu.Lock()
	fresh := s.lastError != err.Error()
	s.lastError = err.Error()
	s.mu.Unlock()
	if fresh {
		s.log.Info("vhost-user: not connected", "error", err)
	}
}

// serve handles the messages of one front end until the connection ends. It reports whether the device
// runs or has been started meanwhile.
func (s *Session) serve(ctx context.Context, conn *net.UnixConn) bool {
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &wire{conn: conn, stop: stop, timeout: messageTimeout}
	defer context.AfterFunc(stop, w.interrupt)()
	s.mu.Lock()
	s.drop = cancel
	started := s.running
	s.mu.Unlock()
	var err error
	for err == nil && s.breakReason() == "" {
		quiet := s.quiet()
		var m message
		var r *row
		m, r, err = w.nextMessage(quiet)
		switch {
		case err == errQuiet && !s.front.ready():
			err = fmt.Errorf("the front end has sent nothing for %v", quiet)
		case err == errQuiet:
			if err = s.spend(stop, startCost); err == nil {
				err = s.start()
			}
			started = started || err == nil
		case err == nil:
			s.heard = true
			if err = s.spend(stop, 1); err == nil {
				err = s.handle(w, &m, r)
			}
			w.waste = append(w.waste, m.untaken()...)
			s.sweep(w)
		}
	}
	if ctx.Err() == nil {
		s.disconnect(ctx, w, err)
	}
	s.sweep(w)
	return started
}

// quiet returns how long the front end must be silent before serve starts the device
// or closes the connection; 0: no limit.
func (s *Session) quiet() time.Duration {
	switch {
	case !s.running && s.front.ready():
		return startDelay
	case s.listener != nil && !s.heard && !s.running:
		return s.first
	}
	return 0
}

// handle runs a message's handler, tells the back end to store the new state, and replies, in this order.
// If the control process is killed in between, the stored state already has the change.
func (s *Session) handle(w *wire, m *message, r *row) error {
	reply, err := r.run(s, m)
	var refused refusal
	if errors.As(err, &refused) {
		s.refuse(r, refused)
	}
	ack := m.flags&flagNeedReply != 0 && s.front.Protocol&ProtocolReplyAck != 0
	switch {
	case err == nil && !r.reply:
		reply = u64Payload(0)
	case err != nil:
		reply = u64Payload(1)
	}
	if s.changed {
		s.tellChanged()
	}
	if m.unread > 0 { // from here on, the next control process does not handle the message again
		if cerr := w.consume(m, r); cerr != nil {
			return fmt.Errorf("%s: %w", r.name, cerr)
		}
	}
	if r.reply && err == nil || ack {
		if werr := w.reply(m, reply); werr != nil && err == nil {
			return fmt.Errorf("%s: reply: %w", r.name, werr)
		}
	}
	if err != nil && refused == "" {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	return nil
}

// refuse logs a refused message, unless the last refusal in the log had the same text.
func (s *Session) refuse(r *row, reason refusal) {
	if text := r.name + ": " + string(reason); s.refused != text {
		s.refused = text
		s.log.Warn("vhost-user: refused", "request", r.name, "error", reason)
	}
}

// change calls the function change on the front end's state, under the lock. It sets s.changed if the
// new state differs from the old one.
func (s *Session) change(change func(f *frontEnd)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, running := s.front.clone(), s.running
	change(&s.front)
	s.changed = s.stale.note(&before, &s.front, s.running != running) || s.changed
	s.memory.adopt(s.front.footprint()) // within the limits, because the caller has reserved the memory
}

// tellChanged makes the back end store the changed parts of the state.
func (s *Session) tellChanged() {
	s.changed = false
	s.backend.Changed()
}

// start passes the device to the engine.
func (s *Session) start() error {
	if err := s.makeRecord(); err != nil {
		return err
	}
	s.mu.Lock()
	spec, fds := s.front.spec(s.cfg.MTU, s.resume)
	s.running, s.resume = true, false
	s.stale[0] = true
	s.mu.Unlock()
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := s.backend.Start(text, fds); err != nil {
		s.mu.Lock()
		s.running, s.stale[0] = false, true
		s.mu.Unlock()
		return fmt.Errorf("start of the device: %w", err)
	}
	s.log.Info("vhost-user: device started", "vrings", len(spec.Vrings), "features", FeatureNames(spec.Features))
	s.tellChanged()
	return nil
}

// makeRecord makes the record of the rings (shared memory for their positions), if there is none. The back
// end stores the record's descriptor before the engine writes to the record.
func (s *Session) makeRecord() error {
	if s.front.Record >= 0 {
		return nil
	}
	pairs := 0
	for i := range s.front.Vrings {
		if s.front.Vrings[i].usable() {
			pairs = i/2 + 1
		}
	}
	fd, err := NewRecord(pairs)
	if err != nil {
		return err
	}
	s.change(func(f *frontEnd) { f.Record = fd })
	s.tellChanged()
	return nil
}

// halt stops a running device, and stores the positions of its rings. If the engine has not returned a
// position, halt reads the position from guest memory.
func (s *Session) halt() { s.stopDevice(resumePosition) }

// abandon stops the device, as halt does, but reads no positions from guest memory. It is for a front end
// that did something hostile, and whose positions nobody needs. Such a front end can delay the reads for as
// long as it likes: a thread that touches a hole of gigabytes in guest memory waits in the kernel and keeps
// its P of the Go scheduler. The control process has only one P for each core without a worker, so all of
// it may stand still meanwhile.
func (s *Session) abandon() {
	s.stopDevice(func(DeviceSpec, []int, VringSpec) (uint16, error) { return 0, nil })
}

// stopDevice stops a running device and stores the positions of its rings. It calls position for each
// ring whose position the engine has not returned.
func (s *Session) stopDevice(position func(s DeviceSpec, fds []int, v VringSpec) (uint16, error)) {
	if !s.running {
		return
	}
	state, err := s.backend.Stop()
	var stopped DeviceState
	if err == nil && len(state) > 0 {
		err = json.Unmarshal(state, &stopped)
	}
	if err != nil {
		s.log.Warn("vhost-user: the engine has not returned the ring positions, they come from guest memory", "error", err)
	}
	known := map[int]uint16{}
	for _, v := range stopped.Vrings {
		known[v.Index] = v.LastAvail
	}
	spec, fds := s.front.spec(s.cfg.MTU, true)
	for _, v := range spec.Vrings {
		if _, ok := known[v.Index]; !ok {
			at, err := position(spec, fds, v)
			if err != nil {
				s.log.Warn("vhost-user: cannot read the position of a ring", "vring", v.Index, "error", err)
				continue
			}
			known[v.Index] = at
		}
	}
	s.change(func(f *frontEnd) {
		for i, base := range known {
			if i >= 0 && i < len(f.Vrings) {
				f.Vrings[i].Base = base
			}
		}
		f.drop(&f.Record) // only a running device needs the record
		f.Announce = nil
		s.running, s.resume = false, false
	})
}

// Break stops the device and closes the connection after the engine found a fault of
// the device. A session in client mode connects again later; a session in server mode
// waits for a connection. Any goroutine may call Break.
func (s *Session) Break(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || s.broken != "" {
		return
	}
	s.broken = reason
	if s.drop != nil {
		s.drop()
	}
}

func (s *Session) breakReason() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// disconnect ends a connection: it stops the device, and drops the state of the front end and the
// connection.
func (s *Session) disconnect(ctx context.Context, w *wire, err error) {
	reason := s.breakReason()
	level := slog.LevelError
	switch {
	case reason != "":
		s.signalErrors()
		s.abandon()
	case err == nil || errors.Is(err, io.EOF):
		reason, level = "front end closed the connection", slog.LevelInfo
	default:
		reason = err.Error()
	}
	s.halt()
	s.log.Log(context.Background(), level, "vhost-user: disconnected", "reason", reason)
	s.mu.Lock()
	s.front.dropAll(s.cfg.Queues)
	s.stale.mark()
	s.memory.adopt(footprint{})
	fds, conn := append(w.waste, s.front.dropped...), s.conn
	w.waste, s.front.dropped = nil, nil
	s.conn, s.broken, s.lastError, s.resume = nil, "", reason, false
	if level == slog.LevelError {
		s.breaks++
	}
	s.mu.Unlock()
	shut(conn)
	s.tellChanged() // the engine closes its duplicates of the descriptors first, see dispose
	s.dispose(ctx, func() {
		closeAll(fds)
		hangUp(conn)
	})
}

// signalErrors signals the err eventfds that SET_VRING_ERR has set.
func (s *Session) signalErrors() {
	for i := range s.front.Vrings {
		fd := s.front.Vrings[i].Err
		if fd < 0 {
			continue
		}
		shm.NewForeign(fd).Signal()
	}
}

// Close ends the session: it stops the device, closes the connection and removes the listening socket.
// It waits until Run has returned, and at most closeWait until the front end's descriptors are closed.
func (s *Session) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	end, done := s.end, s.done
	s.mu.Unlock()
	if done != nil {
		end()
		<-done
	}
	s.halt()
	s.mu.Lock()
	s.front.dropAll(s.cfg.Queues)
	s.memory.close()
	fds, conn, listener := s.front.dropped, s.conn, s.listener
	s.front.dropped, s.conn, s.listener = nil, nil, nil
	s.mu.Unlock()
	if listener != nil {
		removeSocket(s.cfg.Path)
	}
	if conn != nil {
		shut(conn)
	}
	if s.cfg.Forget != nil {
		s.cfg.Forget()
	}
	wait, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	s.dispose(wait, func() {
		closeAll(fds)
		if conn != nil {
			hangUp(conn)
		}
		if listener != nil {
			hangUpListener(listener)
		}
	})
}
