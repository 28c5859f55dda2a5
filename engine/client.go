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

// How long the client waits for the engine. A request is answered between two
// passes of every worker, so all but the first second is for a busy machine.
const (
	spawnTimeout   = 10 * time.Second
	requestTimeout = 10 * time.Second
	// stuckTimeout is how long Kill waits for a condemned engine. All but the first
	// milliseconds are for a busy machine, and for threads that the kernel does not let
	// go.
	stuckTimeout = 250 * time.Millisecond
	// stuckEvery is the time between two looks at the threads of a condemned engine.
	stuckEvery = 5 * time.Millisecond
)

// ErrGone is what every method returns once the engine's connection has ended.
var ErrGone = errors.New("engine: connection lost")

// ErrStuck is what Kill returns of an engine that has been sent SIGKILL and does not
// end: the kernel keeps one of its threads, say in a page fault that nobody serves.
// None of its threads executes an instruction of the program any more, because the
// kernel looks for SIGKILL before it returns to it. So it writes to no ring and no
// guest, and another engine may have its ports; see Disown.
var ErrStuck = errors.New("engine: killed, but the process does not end")

// Client is control's connection to the engine. Its methods may be called by
// several goroutines; requests are answered one after the other. Descriptors
// given to a method are duplicated by the kernel and stay the caller's.
type Client struct {
	conn  *net.UnixConn
	pid   int
	pidfd int // of pid, until Close

	mu      sync.Mutex // one request at a time
	number  uint64     // of the last request
	replies chan received
	gone    chan struct{}
	close   sync.Once

	pending   atomic.Pointer[Pending] // nil: none
	condemned atomic.Bool
}

// Pending is a request that the engine has not answered yet.
type Pending struct {
	Number uint64 // of the connection, from 1 on; 0: none is pending
	Op     string
	Port   uint32 // that it is about; 0: none
}

// Kept is one thing the engine remembers for control: Request as it was sent
// (OpStart, OpAttach or OpKeep) and duplicates of its descriptors, which the
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

// Spawn starts `exe engine --state stateDir` as a process of its own session,
// which outlives the caller, and connects to it. Standard error is inherited.
// An engine that serves stateDir already makes it fail.
func Spawn(exe, stateDir string) (*Client, error) {
	s, err := launch(exec.Command(exe, "engine", "--state", stateDir, controlFlag))
	if err != nil {
		return nil, err
	}
	return s.Engage()
}

// Spare is an engine that is running, and serves once the one that does so now
// has died. It ends with the caller, unless it has workers by then. Engage and
// Close are for one goroutine.
type Spare struct {
	cmd    *exec.Cmd
	client *Client
	exited chan struct{} // closed with why set
	why    error
}

// Prepare starts a spare for the engine of stateDir, to have as many workers;
// otherwise as Spawn.
func Prepare(exe, stateDir string, workers int) (*Spare, error) {
	return launch(exec.Command(exe, "engine", "--state", stateDir, controlFlag, "--spare="+strconv.Itoa(workers)))
}

// controlFlag names the descriptor of the connection that an engine is started
// with: nothing has to be made or found in a file system while guests wait.
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
	// A process group of its own: the terminal's signals are for control alone. Not
	// a session of its own: Linux divides a core among sessions first (sched(7),
	// autogroup), so that a worker's yield would let nobody run who was started
	// beside the switch.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("engine: start: %w", err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0) // not reaped yet
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ours.Close()
		return nil, fmt.Errorf("engine: pidfd of %d: %w", cmd.Process.Pid, err)
	}
	s := &Spare{cmd: cmd, client: newClient(ours, cmd.Process.Pid, pidfd), exited: make(chan struct{})}
	go func() { // also reaps it, whenever it ends
		s.why = cmd.Wait()
		close(s.exited)
	}()
	return s, nil
}

// connection makes the two ends of a connection as the engine's socket has them.
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

// Abandon ends a spare without waiting for its end.
func (s *Spare) Abandon() { go s.Close() }

// Close ends a spare that is not needed.
func (s *Spare) Close() {
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.client.Close()
}

// Engage waits until the engine serves. If that fails, it is ended.
func (s *Spare) Engage() (*Client, error) {
	timeout := time.NewTimer(spawnTimeout)
	defer timeout.Stop()
	select {
	case r := <-s.client.replies: // a greeting
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

// Connect connects to the engine that serves stateDir, replacing an older
// control process. The error wraps fs.ErrNotExist or ECONNREFUSED where no
// engine is there.
func Connect(stateDir string) (*Client, error) {
	conn, err := dialSocket(filepath.Join(stateDir, SocketName))
	for end := time.Now().Add(spawnTimeout); err != nil && locked(stateDir) && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // a spare that has just become the engine
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

// locked tells whether an engine has the state directory.
func locked(stateDir string) bool {
	f, err := os.Open(filepath.Join(stateDir, LockName))
	if err != nil {
		return false
	}
	defer f.Close() // and with it the lock, if it was free
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
}

func newClient(conn *net.UnixConn, pid, pidfd int) *Client {
	c := &Client{conn: conn, pid: pid, pidfd: pidfd, replies: make(chan received, 1), gone: make(chan struct{})}
	go c.read()
	return c
}

// read hands replies to the request that waits for them, until the engine is
// gone. The kernel ends the connection while the engine dies, whatever it died
// of, so this is noticed at once.
func (c *Client) read() {
	defer close(c.gone)
	for {
		r, err := receive(c.conn)
		if err != nil {
			return
		}
		select {
		case c.replies <- r:
		case <-time.After(requestTimeout): // nobody asked
			closeAll(r.fds)
			return
		}
	}
}

// PID is the engine's process.
func (c *Client) PID() int { return c.pid }

// Gone is closed when the engine has died, or has taken another control
// process instead of this one.
func (c *Client) Gone() <-chan struct{} { return c.gone }

// Pending returns the request under way.
func (c *Client) Pending() Pending {
	if p := c.pending.Load(); p != nil {
		return *p
	}
	return Pending{}
}

// Condemn sends the engine SIGKILL and ends the connection, without waiting for
// anything: requests under way return ErrGone.
func (c *Client) Condemn() {
	c.condemned.Store(true)
	_ = unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0) // Kill says what is wrong
	c.conn.Close()
}

// Disown has the next engine of a state directory not wait for one that is stuck and
// holds the lock. Kill has returned ErrStuck. A spare, which waits already, is to be
// closed.
func Disown(stateDir string) error { return os.Remove(filepath.Join(stateDir, LockName)) }

// Wait blocks the calling thread, not only its goroutine, until the engine's process
// has ended: it hears of that as soon as it has the core.
func (c *Client) Wait() {
	fd, err := unix.FcntlInt(uintptr(c.pidfd), unix.F_DUPFD_CLOEXEC, 0) // Close ends the other one
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

// Start starts the workers on memory that control has made for s; see NewMemory.
func (c *Client) Start(s Start, m *Memory) error {
	_, err := c.call(&Request{Op: OpStart, Start: &s}, m.FDs())
	return err
}

// Attach opens a device in the engine and gives its queues to the workers.
func (c *Client) Attach(a Attach, fds []int) error {
	_, err := c.call(&Request{Op: OpAttach, Attach: &a}, fds)
	return err
}

// Detach takes a port from the workers, closes it, and returns its device's
// State. Once it returns, the engine uses nothing of the port.
func (c *Client) Detach(port uint32) (json.RawMessage, error) {
	r, err := c.call(&Request{Op: OpDetach, Port: port}, nil)
	return r.State, err
}

// Keep has the engine keep blob and duplicates of fds under key.
func (c *Client) Keep(key string, blob json.RawMessage, fds []int) error {
	_, err := c.call(&Request{Op: OpKeep, Key: key, Blob: blob}, fds)
	return err
}

// Forget drops what was kept under key, if anything.
func (c *Client) Forget(key string) error {
	_, err := c.call(&Request{Op: OpForget, Key: key}, nil)
	return err
}

// Recall returns all that the engine keeps: first the start if there was one,
// then ports in the order they were attached in, then keys in order. The caller
// owns the descriptors.
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

// Stop ends the engine in good order and waits until it is gone.
func (c *Client) Stop() error {
	if _, err := c.call(&Request{Op: OpStop}, nil); err != nil {
		return err
	}
	return c.awaitDeath(requestTimeout)
}

// Kill ends the engine by SIGKILL, if it lives, and waits until it is gone, for a
// condemned one not for long. The error is ErrStuck if it does not go. Control calls
// it before it spawns another, so that never two use a ring.
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

// threadsEnded tells whether every thread of a process has ended and let go of its
// files. The process may still be there for a debugger to take note of it.
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

// Close ends the connection; the engine goes on.
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
	c.pending.Store(&Pending{Number: c.number, Op: req.Op, Port: req.port()})
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
		case r := <-c.replies: // answered before it went
			return r, nil
		default:
			return received{}, ErrGone
		}
	case <-timeout.C:
		// A reply that comes later would answer the wrong request.
		c.conn.Close()
		return received{}, fmt.Errorf("engine: no answer within %v", requestTimeout)
	}
}
