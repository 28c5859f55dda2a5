// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/buildinfo"
)

// Timeouts of the client. The engine answers a request between two passes of every
// worker, in less than a second. The rest of the time is a margin for a busy machine.
const (
	requestTimeout = 10 * time.Second
	// stuckTimeout is how long Kill waits for the end of an engine after Condemn. An
	// engine usually ends within some milliseconds.
	stuckTimeout = 250 * time.Millisecond
	// stuckEvery is the interval at which Kill checks whether a condemned (killed)
	// engine has ended.
	stuckEvery = 5 * time.Millisecond
)

// spawnTimeout is the time within which an engine must answer after its start; tests
// shorten it.
var spawnTimeout = 10 * time.Second

// ErrGone is the error of every method once the connection to the engine has ended.
var ErrGone = errors.New("engine: connection lost")

// ErrStuck is the error of Kill if the engine has got SIGKILL but does not end. The
// kernel then keeps one of its threads, for example in a page fault. Such an engine
// executes no instruction any more, so another engine may take over its ports. See
// Disown.
var ErrStuck = errors.New("engine: killed, but the process does not end")

// Client is control's connection to the engine. Its methods are safe for concurrent
// use; the engine answers one request at a time. The caller still owns the descriptors
// that it passes to a method.
type Client struct {
	conn  *net.UnixConn
	pid   int
	pidfd int // pidfd of pid, open until Close

	mu      sync.Mutex // mu makes sure that one request at a time waits for its reply
	number  uint64     // number of the last request
	replies chan received
	ended   chan struct{}
	waiting chan struct{} // closed when a spare engine waits for the serving one to end
	close   sync.Once

	pending   atomic.Pointer[Pending] // request under way; nil: none
	build     atomic.Pointer[buildinfo.Build]
	condemned atomic.Bool
}

// Pending is a request without reply.
type Pending struct {
	Number uint64 // number of the request on this connection, from 1 on; 0: no request is pending
	Op     string
	Port   uint32 // port number of the request; 0: no port
	Since  time.Time
}

// Kept is a request that the engine keeps for control (OpStart, OpAttach or OpKeep). It
// has duplicates of the request's descriptors, which the receiver owns.
type Kept struct {
	Request Request
	FDs     []int
}

// CloseFDs closes the descriptors of k.
func (k *Kept) CloseFDs() {
	closeAll(k.FDs)
	k.FDs = nil
}

// Spawn starts `exe engine --state stateDir` in a process group of its own and
// connects to it. The engine outlives the caller and inherits the caller's standard
// error. Spawn fails if another engine serves stateDir.
func Spawn(exe, stateDir string) (*Client, error) {
	s, err := launch(exec.Command(exe, "engine", "--state", stateDir, controlFlag))
	if err != nil {
		return nil, err
	}
	return s.Engage()
}

// Spare is a running engine process that takes over when the serving engine dies. It
// ends with its control process, unless its workers have started. Only one goroutine at
// a time may call Engage and Close.
type Spare struct {
	cmd     *exec.Cmd
	client  *Client
	exited  chan struct{} // exited is closed when the process has ended. failure is valid from then on.
	failure error
}

// Prepare starts a spare engine like Spawn, while another engine serves stateDir.
// workers is the number of workers that the spare engine will have.
func Prepare(exe, stateDir string, workers int) (*Spare, error) {
	return launch(exec.Command(exe, "engine", "--state", stateDir, controlFlag, "--spare="+strconv.Itoa(workers)))
}

// controlFlag passes the connection to control to an engine as an open descriptor. The
// engine then needs no socket file while guests wait.
const controlFlag = "--control=3"

func launch(cmd *exec.Cmd) (*Spare, error) {
	ours, theirs, err := connection()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	defer theirs.Close()
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", "GOGC=off")
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	cmd.ExtraFiles = []*os.File{theirs}
	// A process group of its own protects the engine from the terminal's signals. A
	// session of its own would be wrong: Linux first divides a core among sessions
	// (sched(7), autogroup), so workers would not yield to other processes of the
	// switch's session.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("engine: start: %w", err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0) // the process is not reaped yet, so its id is still valid
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ours.Close()
		return nil, fmt.Errorf("engine: pidfd of %d: %w", cmd.Process.Pid, err)
	}
	s := &Spare{cmd: cmd, client: newClient(ours, cmd.Process.Pid, pidfd), exited: make(chan struct{})}
	go func() { // reaps the process whenever it ends
		s.failure = cmd.Wait()
		close(s.exited)
	}()
	return s, nil
}

// connection returns the two ends of a socket pair. Its socket type is the same as the
// type of the engine's socket.
func connection() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs = os.NewFile(uintptr(fds[1]), "engine")
	if ours, err = fileConn(fds[0]); err != nil {
		theirs.Close()
	}
	return ours, theirs, err
}

// AwaitReady waits until the spare engine has started and waits for the end of the
// serving one. After spawnTimeout or an error it kills the spare engine.
func (s *Spare) AwaitReady() error {
	timeout := time.NewTimer(spawnTimeout)
	defer timeout.Stop()
	select {
	case <-s.client.waiting:
		return nil
	case <-s.client.ended:
		return s.failed()
	case <-timeout.C:
		return s.silent()
	}
}

// Abandon kills a spare engine without waiting for its end.
func (s *Spare) Abandon() { go s.Close() }

// Close kills a spare engine and waits until its process has ended.
func (s *Spare) Close() {
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.client.Close()
}

// Engage waits until the spare engine serves, and returns a client of it. After
// spawnTimeout or an error it kills the spare engine.
func (s *Spare) Engage() (*Client, error) {
	timeout := time.NewTimer(spawnTimeout)
	defer timeout.Stop()
	select {
	case r := <-s.client.replies: // the engine's greeting
		closeAll(r.fds)
		return s.client, nil
	case <-s.client.ended:
		return nil, s.failed()
	case <-timeout.C:
		return nil, s.silent()
	}
}

// failed returns the error of an engine that has ended at its start.
func (s *Spare) failed() error {
	s.Close()
	return fmt.Errorf("engine: ended at its start: %v", s.failure)
}

// silent kills an engine that has not answered within spawnTimeout.
func (s *Spare) silent() error {
	s.Close()
	return fmt.Errorf("engine: did not answer within %v", spawnTimeout)
}

// Connect connects to the engine that serves stateDir. The new connection replaces that
// of an older control process. Without an engine, the error wraps fs.ErrNotExist or
// ECONNREFUSED.
func Connect(stateDir string) (*Client, error) {
	conn, err := dialServing(stateDir)
	for end := time.Now().Add(spawnTimeout); err != nil && locked(stateDir) && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // a spare engine may hold the lock before it has written its process id
		conn, err = dialServing(stateDir)
	}
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	pid, pidfd, err := peer(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("engine: %w", err)
	}
	return newClient(conn, pid, pidfd), nil
}

// dialServing connects to the socket of the engine whose process id is in the lock file.
func dialServing(stateDir string) (*net.UnixConn, error) {
	text, err := os.ReadFile(filepath.Join(stateDir, LockName))
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: expected a process id: %w", LockName, fs.ErrNotExist)
	}
	conn, err := dialSocket(filepath.Join(stateDir, SocketName(pid)))
	if errors.Is(err, fs.ErrNotExist) {
		return dialSocket(filepath.Join(stateDir, formerSocket))
	}
	return conn, err
}

// RemoveSockets removes the sockets of ended engines from a state directory. It keeps
// the sockets of the processes in keep. An engine cannot remove its own socket.
func RemoveSockets(stateDir string, keep ...int) {
	// error ignored: a socket file that stays is harmless, because nobody listens on it
	entries, _ := os.ReadDir(stateDir)
	for _, e := range entries {
		name := e.Name()
		ours := name == formerSocket || strings.HasPrefix(name, "engine-") && strings.HasSuffix(name, ".sock")
		if ours && !slices.ContainsFunc(keep, func(pid int) bool { return name == SocketName(pid) }) {
			_ = os.Remove(filepath.Join(stateDir, name))
		}
	}
}

// locked reports whether an engine holds the lock of the state directory.
func locked(stateDir string) bool {
	f, err := os.Open(filepath.Join(stateDir, LockName))
	if err != nil {
		return false
	}
	defer f.Close() // Close also releases the lock, if the Flock below has acquired it
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
}

func newClient(conn *net.UnixConn, pid, pidfd int) *Client {
	c := &Client{conn: conn, pid: pid, pidfd: pidfd, replies: make(chan received, 1), ended: make(chan struct{}), waiting: make(chan struct{})}
	go c.read()
	return c
}

// read passes replies to the waiting request until the connection closes. It closes
// when the engine dies.
func (c *Client) read() {
	defer close(c.ended)
	for waits := false; ; {
		r, err := receive(c.conn)
		if err != nil {
			return
		}
		if r.reply.Waiting && !waits {
			waits = true
			closeAll(r.fds)
			close(c.waiting)
			continue
		}
		if r.reply.Build != nil {
			c.build.Store(r.reply.Build)
		}
		select {
		case c.replies <- r:
		case <-time.After(requestTimeout): // no request waits for the reply
			closeAll(r.fds)
			return
		}
	}
}

// PID returns the process id of the engine.
func (c *Client) PID() int { return c.pid }

// Build returns the engine's build after Start or Recall. It returns a zero Build if
// the engine is of a version that does not report its build.
func (c *Client) Build() buildinfo.Build {
	if b := c.build.Load(); b != nil {
		return *b
	}
	return buildinfo.Build{}
}

// Gone returns a channel that is closed when the engine has died or has accepted
// another control process.
func (c *Client) Gone() <-chan struct{} { return c.ended }

// Pending returns the request in progress, or a zero Pending if there is none.
func (c *Client) Pending() Pending {
	if p := c.pending.Load(); p != nil {
		return *p
	}
	return Pending{}
}

// Condemn sends the engine SIGKILL and closes the connection, without waiting.
// Requests return ErrGone.
func (c *Client) Condemn() {
	c.condemned.Store(true)
	// error ignored: Kill sends the signal again and reports the error
	_ = unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)
	c.conn.Close()
}

// Disown removes the lock file of a state directory, so that the next engine does not
// wait for a stuck one. The caller must have got ErrStuck from Kill. It must also close
// the spare engine, because this engine waits for the old lock file.
func Disown(stateDir string) error { return os.Remove(filepath.Join(stateDir, LockName)) }

// Wait waits until the engine's process has ended. It blocks the calling thread in the
// kernel, so that Wait returns as soon as the thread gets a core.
func (c *Client) Wait() {
	fd, err := unix.FcntlInt(uintptr(c.pidfd), unix.F_DUPFD_CLOEXEC, 0) // Close may close pidfd during the wait
	if err != nil {
		<-c.ended
		return
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(fds, -1); n > 0 && err == nil {
			return
		}
	}
}

// Start starts the workers with configuration s on memory m. The caller has made m with
// NewMemory for s.
func (c *Client) Start(s Start, m *Memory) error {
	_, err := c.call(&Request{Op: OpStart, Start: &s}, m.FDs())
	return err
}

// Attach opens a device in the engine and gives its queues to the workers.
func (c *Client) Attach(a Attach, fds []int) error {
	_, err := c.call(&Request{Op: OpAttach, Attach: &a}, fds)
	return err
}

// Detach takes a port from the workers, closes its device and returns the device's
// State. When it returns, the engine uses no memory or descriptor of the port.
func (c *Client) Detach(port uint32) (json.RawMessage, error) {
	r, err := c.call(&Request{Op: OpDetach, Port: port}, nil)
	return r.State, err
}

// Keep stores blob and duplicates of fds in the engine under key.
func (c *Client) Keep(key string, blob json.RawMessage, fds []int) error {
	_, err := c.call(&Request{Op: OpKeep, Key: key, Blob: blob}, fds)
	return err
}

// Forget deletes the entry of key. It returns no error if there is none.
func (c *Client) Forget(key string) error {
	_, err := c.call(&Request{Op: OpForget, Key: key}, nil)
	return err
}

// Recall returns all kept requests: the OpStart if any, the ports in the order of
// attachment, and the keys in the order of their first OpKeep. The caller owns the
// descriptors.
func (c *Client) Recall() ([]Kept, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.pending.Store(nil)
	if err := c.send(&Request{Op: OpRecall}, nil); err != nil {
		return nil, err
	}
	var all []Kept
	for {
		r, err := c.await()
		if err == nil && r.reply.Error != "" {
			err = errors.New("engine: " + r.reply.Error)
		}
		if err != nil {
			for i := range all {
				all[i].CloseFDs()
			}
			return nil, err
		}
		if r.reply.Last {
			return all, nil
		}
		if r.reply.Kept != nil {
			all = append(all, Kept{Request: *r.reply.Kept, FDs: r.fds})
		}
	}
}

// Halt ends the engine's workers between two passes, so that no frame gets lost in their
// hands. When it returns nil, the engine uses no ring any more, and the spare engine
// serves. The caller kills the engine later. An engine of an earlier version refuses.
func (c *Client) Halt() error {
	_, err := c.call(&Request{Op: OpHalt}, nil)
	return err
}

// Stop ends the engine in good order and waits until its process has ended.
func (c *Client) Stop() error {
	if _, err := c.call(&Request{Op: OpStop}, nil); err != nil {
		return err
	}
	return c.awaitDeath(requestTimeout)
}

// MayKill reports whether this process may send signals to the engine. It may not if
// another user runs the engine and this process lacks CAP_KILL.
func (c *Client) MayKill() bool {
	return !errors.Is(unix.PidfdSendSignal(c.pidfd, 0, nil, 0), unix.EPERM)
}

// Kill sends SIGKILL to the engine and waits until its process has ended. After Condemn
// it waits at most for stuckTimeout, and returns ErrStuck if the engine has not ended.
// Kill must precede the start of another engine, because two engines must never use the
// same ring. If this process may not kill the engine, Kill does what Stop does.
func (c *Client) Kill() error {
	if !c.MayKill() {
		if err := c.Stop(); err != nil {
			return fmt.Errorf("engine: process %d belongs to another user and does not stop (%w): end it as root, kill -9 %d", c.pid, err, c.pid)
		}
		return nil
	}
	if err := unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("engine: kill %d: %w", c.pid, err)
	}
	if !c.condemned.Load() {
		return c.awaitDeath(requestTimeout)
	}
	var err error
	for end := time.Now().Add(stuckTimeout); time.Now().Before(end); {
		if err = c.awaitDeath(stuckEvery); err == nil || threadsEnded(c.pid) {
			return nil
		}
	}
	return err
}

// threadsEnded reports whether every thread of a process has ended and closed its
// files. Such a process may still exist as a zombie if a debugger traces it.
func threadsEnded(pid int) bool {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(names) == 0 {
		return false
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text[max(0, bytes.LastIndexByte(text, ')')):]), " ")
		if !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X") {
			return false
		}
	}
	return true
}

func (c *Client) awaitDeath(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("%w: %d", ErrStuck, c.pid)
		}
		fds := []unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(left.Milliseconds())+1); n > 0 && err == nil {
			return nil
		}
	}
}

// Close closes the connection. The engine continues to run.
func (c *Client) Close() error {
	var err error
	c.close.Do(func() {
		err = c.conn.Close()
		<-c.ended
		unix.Close(c.pidfd)
	})
	return err
}

func (c *Client) call(req *Request, fds []int) (Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.pending.Store(nil)
	if err := c.send(req, fds); err != nil {
		return Reply{}, err
	}
	r, err := c.await()
	if err != nil {
		return Reply{}, err
	}
	closeAll(r.fds)
	if r.reply.Error != "" {
		return Reply{}, errors.New("engine: " + r.reply.Error)
	}
	return r.reply, nil
}

func (c *Client) send(req *Request, fds []int) error {
	c.number++
	c.pending.Store(&Pending{Number: c.number, Op: req.Op, Port: req.port(), Since: time.Now()})
	err := sendMessage(c.conn, req, fds)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) {
		return ErrGone
	}
	return err
}

func (c *Client) await() (received, error) {
	timeout := time.NewTimer(requestTimeout)
	defer timeout.Stop()
	select {
	case r := <-c.replies:
		return r, nil
	case <-c.ended:
		select {
		case r := <-c.replies: // the engine answered before it ended
			return r, nil
		default:
			return received{}, ErrGone
		}
	case <-timeout.C:
		// A late reply would be mistaken for the reply to the next request, so a
		// timeout closes the connection.
		c.conn.Close()
		return received{}, fmt.Errorf("engine: no answer within %v", requestTimeout)
	}
}
