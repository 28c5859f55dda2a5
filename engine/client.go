// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Timeouts of the client. The engine answers a request between two passes of every
// worker, which takes less than a second; the rest is a margin for a busy machine.
const (
	spawnTimeout   = 10 * time.Second
	requestTimeout = 10 * time.Second
	// stuckTimeout is the time for which Kill waits for an engine after Condemn. The
	// engine takes some milliseconds to die; the rest is a margin for a busy machine
	// and for threads that the kernel keeps.
	stuckTimeout = 250 * time.Millisecond
	// stuckEvery is the time between two checks whether a condemned engine's threads
	// have ended.
	stuckEvery = 5 * time.Millisecond
)

// ErrGone is the error of every method once the connection to the engine has ended.
var ErrGone = errors.New("engine: connection lost")

// ErrStuck is the error of Kill for an engine that got SIGKILL and does not end,
// because the kernel keeps one of its threads, for example in a page fault that no
// process serves. None of its threads executes an instruction of the program any
// more, because the kernel handles SIGKILL before it returns to the program. The
// engine therefore writes to no ring and no guest memory, and another engine may take
// over its ports; see Disown.
var ErrStuck = errors.New("engine: killed, but the process does not end")

// Client is control's connection to the engine. Several goroutines may call its
// methods; the engine answers requests one after the other. The kernel duplicates the
// descriptors given to a method; the caller still owns them.
type Client struct {
	conn  *net.UnixConn
	pid   int
	pidfd int // pidfd of pid, open until Close

	mu      sync.Mutex // mu lets one call at a time send a request and wait for its reply
	number  uint64     // number of the last request
	replies chan received
	gone    chan struct{}
	close   sync.Once

	pending   atomic.Pointer[Pending] // request under way; nil: none
	condemned atomic.Bool
}

// Pending is a request that the engine has not answered yet.
type Pending struct {
	Number uint64 // number of the request on this connection, starting at 1; 0: no request is pending
	Op     string
	Port   uint32 // number of the port that the request is about; 0: no port
	Since  time.Time
}

// Kept is one request that the engine keeps for control: the Request as control sent
// it (OpStart, OpAttach or OpKeep) and duplicates of its descriptors, which the
// receiver owns.
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

// Spare is a running engine that waits for the death of the serving engine and then
// serves in its place. A spare ends with its control process, unless its workers have
// started. Only one goroutine at a time may call Engage and Close.
type Spare struct {
	cmd    *exec.Cmd
	client *Client
	exited chan struct{} // exited is closed after the process has ended and why is set
	why    error
}

// Prepare starts a spare for the engine of stateDir. workers is the number of workers
// that the spare will need. In all other respects Prepare works like Spawn.
func Prepare(exe, stateDir string, workers int) (*Spare, error) {
	return launch(exec.Command(exe, "engine", "--state", stateDir, controlFlag, "--spare="+strconv.Itoa(workers)))
}

// controlFlag passes the descriptor of the connection to control to an engine. The
// engine then need not create or find a socket in a file system while guests wait.
const controlFlag = "--control=3"

func launch(cmd *exec.Cmd) (*Spare, error) {
	ours, theirs, err := connection()
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	defer theirs.Close()
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", "GOGC=off")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	// The engine gets a process group of its own, so that the terminal's signals
	// reach only control. It does not get a session of its own: Linux divides a core
	// among sessions first (sched(7), autogroup). A worker in its own session would
	// therefore not yield to a process that was started in the switch's session.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("engine: start: %w", err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0) // the process is not reaped yet, so no other process can have its id
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ours.Close()
		return nil, fmt.Errorf("engine: pidfd of %d: %w", cmd.Process.Pid, err)
	}
	s := &Spare{cmd: cmd, client: newClient(ours, cmd.Process.Pid, pidfd), exited: make(chan struct{})}
	go func() { // reaps the process whenever it ends
		s.why = cmd.Wait()
		close(s.exited)
	}()
	return s, nil
}

// connection returns the two ends of a socket pair, of the same socket type as the
// engine's socket.
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

// Abandon kills a spare without waiting for its end.
func (s *Spare) Abandon() { go s.Close() }

// Close kills a spare and waits until its process has ended.
func (s *Spare) Close() {
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.client.Close()
}

// Engage waits until the spare serves. If that fails or takes longer than
// spawnTimeout, Engage kills the spare.
func (s *Spare) Engage() (*Client, error) {
	timeout := time.NewTimer(spawnTimeout)
	defer timeout.Stop()
	select {
	case r := <-s.client.replies: // the engine's greeting
		closeAll(r.fds)
		return s.client, nil
	case <-s.client.gone:
		s.Close()
		return nil, fmt.Errorf("engine: ended at its start: %v", s.why)
	case <-timeout.C:
		s.Close()
		return nil, fmt.Errorf("engine: did not answer within %v", spawnTimeout)
	}
}

// Connect connects to the engine that serves stateDir. The connection replaces the
// connection of an older control process. If there is no engine, the error wraps
// fs.ErrNotExist or ECONNREFUSED.
func Connect(stateDir string) (*Client, error) {
	conn, err := dialSocket(filepath.Join(stateDir, SocketName))
	for end := time.Now().Add(spawnTimeout); err != nil && locked(stateDir) && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // a spare that has just taken the lock may not have its socket yet
		conn, err = dialSocket(filepath.Join(stateDir, SocketName))
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

// locked reports whether an engine holds the lock of the state directory.
func locked(stateDir string) bool {
	f, err := os.Open(filepath.Join(stateDir, LockName))
	if err != nil {
		return false
	}
	defer f.Close() // Close also releases the lock, if Flock below acquires it
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
}

func newClient(conn *net.UnixConn, pid, pidfd int) *Client {
	c := &Client{conn: conn, pid: pid, pidfd: pidfd, replies: make(chan received, 1), gone: make(chan struct{})}
	go c.read()
	return c
}

// read passes replies to the waiting request until the engine is gone. The kernel
// closes the connection when the engine dies for any reason, so read notices the
// death at once.
func (c *Client) read() {
	defer close(c.gone)
	for {
		r, err := receive(c.conn)
		if err != nil {
			return
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

// Gone returns a channel that is closed when the engine has died or has accepted
// another control process.
func (c *Client) Gone() <-chan struct{} { return c.gone }

// Pending returns the request in progress, or a zero Pending if there is none.
func (c *Client) Pending() Pending {
	if p := c.pending.Load(); p != nil {
		return *p
	}
	return Pending{}
}

// Condemn sends the engine SIGKILL and closes the connection, without waiting.
// Requests in progress return ErrGone.
func (c *Client) Condemn() {
	c.condemned.Store(true)
	_ = unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0) // error ignored: Kill sends the signal again and reports the error
	c.conn.Close()
}

// Disown removes the lock file of a state directory, so that the next engine does not
// wait for a stuck engine that holds the lock. The caller must call Disown only after
// Kill has returned ErrStuck. The caller must also close the spare, which already
// waits for the old lock file.
func Disown(stateDir string) error { return os.Remove(filepath.Join(stateDir, LockName)) }

// Wait waits until the engine's process has ended. It blocks the calling thread, not
// only the goroutine, and therefore returns as soon as the thread gets a core.
func (c *Client) Wait() {
	fd, err := unix.FcntlInt(uintptr(c.pidfd), unix.F_DUPFD_CLOEXEC, 0) // duplicate of pidfd, because Close may close pidfd during the wait
	if err != nil {
		<-c.gone
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

// Start starts the workers with the configuration s on the memory m. The caller has
// made m by calling NewMemory with the same configuration.
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
// State. When Detach returns, the engine uses no memory or descriptor of the port.
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

// Recall returns all requests that the engine keeps: first the OpStart, if there was
// one, then the ports in the order of attachment, then the keys in the order of their
// first OpKeep. The caller owns the descriptors.
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

// Stop ends the engine in good order and waits until its process has ended.
func (c *Client) Stop() error {
	if _, err := c.call(&Request{Op: OpStop}, nil); err != nil {
		return err
	}
	return c.awaitDeath(requestTimeout)
}

// Kill sends SIGKILL to the engine and waits until its process has ended. After
// Condemn, Kill waits only for stuckTimeout. Kill returns ErrStuck if the engine does
// not end. Control calls Kill before it spawns another engine, so that two engines
// never use the same ring.
func (c *Client) Kill() error {
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
// files. The process may remain as a zombie until a debugger that traces it has
// noticed its end.
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
		<-c.gone
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
	case <-c.gone:
		select {
		case r := <-c.replies: // the engine answered before it ended
			return r, nil
		default:
			return received{}, ErrGone
		}
	case <-timeout.C:
		// After a timeout the connection is closed. Otherwise a late reply to this
		// request would be taken for the reply to the next request.
		c.conn.Close()
		return received{}, fmt.Errorf("engine: no answer within %v", requestTimeout)
	}
}
