// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/buildinfo"
)

// Timeouts of the client.
const (
	// requestTimeout is how long a request waits for its reply. The engine usually answers within
	// milliseconds, when each worker has finished the current turn of its loop. On a busy machine its
	// threads wait for a core, which is no reason to replace the engine. The watchdog finds an engine that
	// hangs much sooner.
	requestTimeout = time.Minute
	// endTimeout is how long Stop and Kill wait for the end of the engine's process.
	endTimeout = 10 * time.Second
	// stuckTimeout is the time limit of two waits. After Condemn, Kill waits so long for the end of the
	// engine's process. Quiesce waits so long until no thread of a killed engine runs code any more,
	// because each thread exits or is blocked in the kernel. An engine usually ends within some
	// milliseconds.
	stuckTimeout = 250 * time.Millisecond
	// exitTimeout is how long Quiesce waits for the end of the process once all its threads are exiting. It
	// does not wait longer, because the kernel must still unmap the guests' memory and close sockets, which
	// has taken up to 516 ms.
	exitTimeout = 5 * time.Millisecond
	// stuckEvery is the time between two looks of Kill and Quiesce at the threads of a killed engine.
	stuckEvery = time.Millisecond
)

// ErrGone is the error of every method once the connection to the engine has ended.
var ErrGone = errors.New("engine: connection lost")

// Client is the control process's connection to the engine process. Its methods are safe for concurrent
// use, but the engine answers one request at a time. The caller keeps the ownership of descriptors that it
// passes to a method.
type Client struct {
	conn  *net.UnixConn
	pid   int
	pidfd int // pidfd of the process pid, open until Close

	mu      sync.Mutex // held by the one request that waits for its reply
	number  uint64     // number of the last request
	replies chan received
	ended   chan struct{}
	waiting chan struct{} // closed when a spare engine waits for the end of the serving engine
	close   sync.Once

	pending   atomic.Pointer[Pending] // request that waits for its reply; nil: none
	build     atomic.Pointer[buildinfo.Build]
	condemned atomic.Bool
	halted    atomic.Bool
}

// Pending is a request that the engine has not answered yet.
type Pending struct {
	Number uint64 // number of the request on this connection, from 1 on; 0: there is no such request
	Op     string
	Port   uint32 // port number of the request; 0: no port
	Since  time.Time
}

func newClient(conn *net.UnixConn, pid, pidfd int) *Client {
	c := &Client{conn: conn, pid: pid, pidfd: pidfd, replies: make(chan received, 1), ended: make(chan struct{}), waiting: make(chan struct{})}
	go c.read()
	return c
}

// read receives the engine's replies and hands each one to the method that waits for it. It returns when
// the connection ends, for example because the engine dies.
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

// Build returns the engine's build, which is known after Start or Recall. It returns a zero Build if
// the engine is of a version that does not report it.
func (c *Client) Build() buildinfo.Build {
	if b := c.build.Load(); b != nil {
		return *b
	}
	return buildinfo.Build{}
}

// Halted reports whether an earlier control process has halted the engine's workers. It is valid after
// Recall. Such an engine still stores requests, but forwards nothing.
func (c *Client) Halted() bool { return c.halted.Load() }

// Gone returns a channel that is closed when the engine has died or has accepted another control
// process.
func (c *Client) Gone() <-chan struct{} { return c.ended }

// Pending returns the request in progress, or a zero Pending if there is none.
func (c *Client) Pending() Pending {
	if p := c.pending.Load(); p != nil {
		return *p
	}
	return Pending{}
}

// Start starts the engine's workers with configuration s on the memory m, which the caller has made
// with NewMemory for s.
func (c *Client) Start(s Start, m *Memory) error {
	_, err := c.call(&Request{Op: OpStart, Start: &s}, m.FDs())
	return err
}

// Attach opens a device in the engine and gives its queues to the workers.
func (c *Client) Attach(a Attach, fds []int) error {
	_, err := c.call(&Request{Op: OpAttach, Attach: &a}, fds)
	return err
}

// Detach takes a port from the workers, closes its device and returns the device's State in JSON. When
// Detach returns, the engine uses no memory or descriptor of the port.
func (c *Client) Detach(port uint32) (json.RawMessage, error) {
	r, err := c.call(&Request{Op: OpDetach, Port: port}, nil)
	return r.State, err
}

// Keep stores blob and duplicates of fds in the engine, under key, for the next control process.
func (c *Client) Keep(key string, blob json.RawMessage, fds []int) error {
	_, err := c.call(&Request{Op: OpKeep, Key: key, Blob: blob}, fds)
	return err
}

// Forget deletes what Keep has stored under key. A missing key is no error.
func (c *Client) Forget(key string) error {
	_, err := c.call(&Request{Op: OpForget, Key: key}, nil)
	return err
}

// Recall returns all requests that the engine stores for the next control process: the OpStart if there is
// one, the ports in the order of their attachment, and the entries of Keep in the order in which their keys
// were first stored. The caller owns the descriptors.
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
			c.halted.Store(r.reply.Halted)
			return all, nil
		}
		if r.reply.Kept != nil {
			all = append(all, Kept{Request: *r.reply.Kept, FDs: r.fds})
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
	for len(fds) > maxDescriptors {
		if _, err := c.exchange(&Request{Op: OpMore, Port: req.port()}, fds[:maxDescriptors]); err != nil {
			return Reply{}, err
		}
		fds = fds[maxDescriptors:]
	}
	return c.exchange(req, fds)
}

// exchange sends a request and returns the engine's reply. The caller holds c.mu.
func (c *Client) exchange(req *Request, fds []int) (Reply, error) {
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
		return received{}, fmt.Errorf("%w: no answer within %v", ErrGone, requestTimeout)
	}
}
