// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/datapath"
	"weft/flowtable"
	"weft/internal/buildinfo"
	"weft/internal/cpu"
	"weft/internal/sandbox"
	"weft/internal/shm"
	"weft/port"
)

// Limits of the engine.
const (
	// MaxKept is the largest number of keys of OpKeep. A further key is refused.
	MaxKept = 4096
	// heapLimit is the heap size in bytes at which the Go runtime itself collects
	// garbage, as a safety net. Usually only type collector does so.
	heapLimit = 1 << 30
)

// LockName is the name of the locked file in the state directory that keeps a second
// engine from serving. It contains the engine's process id.
const LockName = "engine.lock"

// Opener opens a device from control's specification and descriptors. It owns fds,
// even if it fails. Each back end has one.
type Opener func(spec []byte, fds []int) (port.Device, error)

// server is the state of the engine process, owned by the goroutine that serves
// control.
type server struct {
	openers map[string]Opener
	workers *pool // the running workers, or nil before OpStart
	start   *Kept
	ports   []*attached // attached ports, in the order of attachment
	kept    map[string]*Kept
	lock    *os.File // locked while this engine serves the state directory; nil: a rehearsal
	halted  bool     // OpHalt has ended the workers
	keys    []string // keys of the map kept, in the order in which they were first stored
	garbage *collector
}

// attached is an attached port: its OpAttach request and its open device.
type attached struct {
	Kept
	device port.Device
}

// Options are the options with which an engine is started.
type Options struct {
	// Control is an inherited descriptor of the connection to control; 0: none.
	Control int
	// Spare is set for a spare engine: the number of workers for which it prepares
	// memory; 0: this is no spare engine. A spare engine waits until no other engine
	// serves the directory.
	Spare int
	// Rehearsal is set for an engine that only shows that it can start: see Rehearse.
	Rehearsal bool
}

// Serve runs the engine: it answers control's requests on the socket in stateDir until
// OpStop. openers has an Opener for each kind of device. The process must run nothing
// else, because Serve turns the garbage collector off and enters the sandbox. In the
// sandbox, an Opener can open no file. Serve ignores the signals of a terminal or a
// service manager.
func Serve(stateDir string, o Options, openers map[string]Opener) error {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE, unix.SIGTTOU)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(heapLimit)
	// not fatal: without it, only the protection against front ends that block is
	// missing
	if err := shm.Prepare(); err != nil {
		fmt.Fprintf(os.Stderr, "engine: %v; until then a front end can block a worker\n", err)
	}
	s := &server{openers: openers, kept: map[string]*Kept{}, garbage: newCollector()}
	if o.Spare > 0 {
		// short scheduling latency, because guests wait while a spare engine takes
		// over; the call fails without the privilege
		_ = cpu.Urgent()
	}
	if o.Rehearsal {
		return s.rehearse(o.Control)
	}
	lock, l, err := openFiles(stateDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer l.Close()
	s.lock = lock
	if err := sandbox.Enter(); err != nil {
		return fmt.Errorf("engine: sandbox: %w", err)
	}
	var serving atomic.Bool
	if o.Spare > 0 {
		waiting, err := waitingConn(o.Control)
		if err != nil {
			return err
		}
		go reserve(o.Spare, waiting)
		go leaveWithControl(o.Control, &serving)
	}
	if err := acquire(lock, o.Spare > 0); err != nil {
		return err
	}
	serving.Store(true)
	defer s.close()
	c := &connections{server: s, stopped: make(chan struct{}), done: make(chan struct{})}
	close(c.done)
	var conn *net.UnixConn
	if o.Control > 0 {
		if conn, err = fileConn(o.Control); err != nil {
			return fmt.Errorf("engine: connection to control: %w", err)
		}
	}
	if o.Spare > 0 { // done before any disk access, because guests wait
		c.take(conn, true)
	}
	if err := sign(lock); err != nil {
		return err
	}
	if conn != nil && o.Spare == 0 {
		c.take(conn, true)
	}
	return c.accept(l)
}

// rehearse answers control on an inherited connection until the connection ends. It takes
// neither the lock nor a socket of the state directory, and refuses devices.
func (s *server) rehearse(control int) error {
	if err := sandbox.Enter(); err != nil {
		return fmt.Errorf("engine: sandbox: %w", err)
	}
	conn, err := fileConn(control)
	if err != nil {
		return fmt.Errorf("engine: connection to control: %w", err)
	}
	defer s.close()
	s.openers = nil
	if err := sendMessage(conn, Reply{}, nil); err != nil {
		return err
	}
	_ = s.converse(conn) // error ignored: control ends the rehearsal by closing the connection
	return nil
}

// waitingConn returns a connection on which a spare engine reports that it waits: a
// duplicate of control's, or nil without one.
func waitingConn(control int) (*net.UnixConn, error) {
	if control == 0 {
		return nil, nil
	}
	dup, err := unix.FcntlInt(uintptr(control), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("engine: connection to control: %w", err)
	}
	return fileConn(dup)
}

// reserve prepares memory for the caches of this number of workers, as far as time
// permits. Then it reports on conn that the spare engine waits. It owns conn, which may
// be nil.
func reserve(workers int, conn *net.UnixConn) {
	runtime.LockOSThread() // never unlocked, so that the thread ends with its goroutine
	_ = cpu.ShortSlice()
	flowtable.Reserve(datapath.DefaultSizes.Cache, workers)
	if conn != nil {
		_ = sendMessage(conn, Reply{Waiting: true}, nil) // error ignored: without control, leaveWithControl ends the process
		conn.Close()
	}
}

// leaveWithControl ends a spare engine when its control process dies before the spare
// engine serves. It notices this death because the kernel then closes the other end of
// the connection.
func leaveWithControl(control int, serving *atomic.Bool) {
	fds := []unix.PollFd{{Fd: int32(control), Events: unix.POLLRDHUP}}
	for !serving.Load() {
		if n, err := unix.Poll(fds, -1); err == nil && n > 0 && !serving.Load() {
			os.Exit(0)
		}
	}
}

// openFiles opens the lock file, without locking it, and makes the engine's socket.
// Nobody connects to the socket of a spare engine before it has written its process id
// to the lock file.
func openFiles(stateDir string) (lock *os.File, l *net.UnixListener, err error) {
	lock, err = os.OpenFile(filepath.Join(stateDir, LockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("engine: %w", err)
	}
	if l, err = listenSocket(filepath.Join(stateDir, SocketName(os.Getpid()))); err != nil {
		lock.Close()
		return nil, nil, fmt.Errorf("engine: %w", err)
	}
	return lock, l, nil
}

// acquire makes this process the engine of the state directory. f is the directory's
// lock file. If another engine holds the lock, acquire waits until that engine has
// ended. If wait is false, it returns an error instead.
func acquire(f *os.File, wait bool) error {
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	err := error(unix.EINTR)
	for err == unix.EINTR {
		err = unix.Flock(int(f.Fd()), how)
	}
	switch err {
	case nil:
		return nil
	case unix.EWOULDBLOCK:
		return fmt.Errorf("engine: another engine serves %s", filepath.Dir(f.Name()))
	default:
		return fmt.Errorf("engine: lock %s: %w", f.Name(), err)
	}
}

// sign writes this process's id to the lock file.
func sign(lock *os.File) error {
	err := lock.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(lock, os.Getpid())
	}
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	return nil
}

// errStop ends converse after OpStop.
var errStop = errors.New("stop")

// connections has the engine's connection to control. A new connection replaces the old
// one.
type connections struct {
	*server
	listener atomic.Pointer[net.UnixListener]
	stop     sync.Once
	stopped  chan struct{} // channel that OpStop closes
	old      *net.UnixConn
	replaced *atomic.Bool  // a newer connection has replaced the current one
	done     chan struct{} // closed when the current connection's goroutine has returned
}

// take serves a new connection. If greet is set, it first sends an empty Reply, which
// shows that the engine serves.
func (c *connections) take(conn *net.UnixConn, greet bool) {
	if c.old != nil {
		c.replaced.Store(true)
		hangUp(c.old)
	}
	<-c.done
	c.old, c.replaced, c.done = conn, new(atomic.Bool), make(chan struct{})
	go func(replaced *atomic.Bool, done chan struct{}) {
		defer close(done)
		defer hangUp(conn)
		if greet {
			_ = sendMessage(conn, Reply{}, nil)
		}
		// An engine without running workers is useless to another control process, so it
		// ends.
		if errors.Is(c.converse(conn), errStop) || (c.workers == nil || c.halted) && !replaced.Load() {
			c.stop.Do(func() { close(c.stopped) })
			// a closed listener ends accept; without a listener, accept ends when
			// stopped is closed
			if l := c.listener.Load(); l != nil {
				l.Close()
			}
		}
	}(c.replaced, c.done)
}

// hangUp ends a connection, even if leaveWithControl polls it at the moment.
func hangUp(conn *net.UnixConn) {
	_ = conn.CloseRead()
	_ = conn.CloseWrite()
	conn.Close()
}

func (c *connections) accept(l *net.UnixListener) error {
	c.listener.Store(l)
	for {
		select {
		case <-c.stopped:
			return nil
		default:
		}
		conn, err := l.AcceptUnix()
		if err == nil {
			c.take(conn, false)
			continue
		}
		select {
		case <-c.stopped:
			return nil
		default:
			return fmt.Errorf("engine: %w", err)
		}
	}
}

// converse answers requests until the connection ends or OpStop ends the engine.
func (s *server) converse(conn *net.UnixConn) error {
	for {
		var req Request
		fds, malformed, err := receiveMessage(conn, &req)
		if err != nil {
			return err
		}
		if malformed != nil {
			closeAll(fds)
			if err := sendMessage(conn, Reply{Error: malformed.Error()}, nil); err != nil {
				return err
			}
			continue
		}
		if req.Op == OpRecall {
			closeAll(fds)
			if err := s.recall(conn); err != nil {
				return err
			}
			continue
		}
		reply := s.handle(&req, fds)
		if err := sendMessage(conn, reply, nil); err != nil && req.Op != OpStop {
			return err
		}
		if req.Op == OpStop {
			return errStop
		}
		s.garbage.collect()
	}
}

// handle executes one request. It owns fds.
func (s *server) handle(req *Request, fds []int) Reply {
	var reply Reply
	var err error
	switch req.Op {
	case OpStart:
		reply.Build = ownBuild()
		err = s.startWorkers(req, fds)
	case OpAttach:
		err = s.attach(req, fds)
	case OpDetach:
		closeAll(fds)
		reply.State, err = s.detach(req.Port)
	case OpKeep:
		err = s.keep(req, fds)
	case OpForget:
		closeAll(fds)
		s.forget(req.Key)
	case OpHalt:
		closeAll(fds)
		err = s.halt()
	case OpStop:
		closeAll(fds)
	default:
		closeAll(fds)
		err = fmt.Errorf("request %q: expected start, attach, detach, keep, forget, recall, halt or stop", req.Op)
	}
	if err != nil {
		return Reply{Error: err.Error()}
	}
	return reply
}

func (s *server) startWorkers(req *Request, fds []int) error {
	if s.workers != nil {
		closeAll(fds)
		return errors.New("start: the workers are already running")
	}
	if req.Start == nil {
		closeAll(fds)
		return errors.New("start: the request has no start field")
	}
	dups, err := duplicate(fds)
	if err != nil {
		closeAll(fds)
		return err
	}
	workers, err := newPool(*req.Start, fds)
	if err != nil {
		closeAll(dups)
		return fmt.Errorf("start: %w", err)
	}
	s.workers, s.start = workers, &Kept{Request: *req, FDs: dups}
	return nil
}

// halt ends the workers, and lets the spare engine serve.
func (s *server) halt() error {
	if s.workers == nil || s.lock == nil {
		return errors.New("halt: no workers serve")
	}
	s.workers.halt()
	s.halted = true
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_UN); err != nil {
		return fmt.Errorf("halt: unlock %s: %w", s.lock.Name(), err)
	}
	return nil
}

func (s *server) attach(req *Request, fds []int) error {
	a := req.Attach
	if a == nil || a.Port == 0 || a.Port >= port.MaxPorts {
		closeAll(fds)
		return fmt.Errorf("attach: invalid port: expected 1 to %d", port.MaxPorts-1)
	}
	if s.halted {
		closeAll(fds)
		return fmt.Errorf("attach %s: the workers have been halted", a.Name)
	}
	if s.workers == nil {
		closeAll(fds)
		return fmt.Errorf("attach %s: the workers have not been started", a.Name)
	}
	open := s.openers[a.Kind]
	if open == nil {
		closeAll(fds)
		return fmt.Errorf("attach %s: unknown device kind %q", a.Name, a.Kind)
	}
	// The old device releases its memory before the new one opens.
	s.remove(a.Port)
	dups, err := duplicate(fds)
	if err != nil {
		closeAll(fds)
		return fmt.Errorf("attach %s: %w", a.Name, err)
	}
	device, err := open(a.Spec, fds)
	if err != nil {
		closeAll(dups)
		return fmt.Errorf("attach %s: %w", a.Name, err)
	}
	if err := s.workers.add(a.Port, device, a.Tunnel); err != nil {
		s.workers.remove(a.Port)
		device.Close()
		closeAll(dups)
		return fmt.Errorf("attach %s: %w", a.Name, err)
	}
	s.ports = append(s.ports, &attached{Kept: Kept{Request: *req, FDs: dups}, device: device})
	return nil
}

func (s *server) detach(number uint32) (json.RawMessage, error) {
	state, was := s.remove(number)
	if !was {
		return nil, fmt.Errorf("detach: port %d is not attached", number)
	}
	return state, nil
}

// remove takes a port from the workers, closes its device and returns the device's
// State. attached is false if the port was not attached.
func (s *server) remove(number uint32) (state json.RawMessage, attached bool) {
	for i, p := range s.ports {
		if p.Request.Attach.Port != number {
			continue
		}
		s.workers.remove(number)
		state = p.device.State()
		p.device.Close()
		p.CloseFDs()
		s.ports = append(s.ports[:i], s.ports[i+1:]...)
		return state, true
	}
	return nil, false
}

func (s *server) keep(req *Request, fds []int) error {
	old := s.kept[req.Key]
	if req.Key == "" || old == nil && len(s.kept) == MaxKept {
		closeAll(fds)
		return fmt.Errorf("keep %q: expected a key, and at most %d keys", req.Key, MaxKept)
	}
	if old != nil {
		old.CloseFDs()
	} else {
		s.keys = append(s.keys, req.Key)
	}
	s.kept[req.Key] = &Kept{Request: *req, FDs: fds}
	return nil
}

func (s *server) forget(key string) {
	k := s.kept[key]
	if k == nil {
		return
	}
	k.CloseFDs()
	delete(s.kept, key)
	for i := range s.keys {
		if s.keys[i] == key {
			s.keys = append(s.keys[:i], s.keys[i+1:]...)
			return
		}
	}
}

// recall sends all kept requests. The kernel duplicates their descriptors.
func (s *server) recall(conn *net.UnixConn) error {
	var all []*Kept
	if s.start != nil {
		all = append(all, s.start)
	}
	for _, p := range s.ports {
		all = append(all, &p.Kept)
	}
	for _, key := range s.keys {
		all = append(all, s.kept[key])
	}
	for _, k := range all {
		if err := sendMessage(conn, Reply{Kept: &k.Request}, k.FDs); err != nil {
			return err
		}
	}
	return sendMessage(conn, Reply{Last: true, Build: ownBuild()}, nil)
}

func ownBuild() *buildinfo.Build {
	b := buildinfo.Own()
	return &b
}

// close closes all ports, workers and kept descriptors.
func (s *server) close() {
	for len(s.ports) > 0 {
		s.remove(s.ports[0].Request.Attach.Port)
	}
	if s.workers != nil {
		s.workers.stop()
	}
	if s.start != nil {
		s.start.CloseFDs()
	}
	for len(s.keys) > 0 {
		s.forget(s.keys[0])
	}
}
