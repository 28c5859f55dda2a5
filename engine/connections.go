// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// connections serves the engine's connection to the control process. A new connection replaces the old one.
type connections struct {
	*server
	listener atomic.Pointer[net.UnixListener]
	stop     sync.Once
	stopped  chan struct{} // channel that OpStop closes
	old      *net.UnixConn
	replaced *atomic.Bool  // a newer connection has replaced the current one
	done     chan struct{} // closed when the current connection's goroutine has returned
	attached atomic.Bool   // a control process is connected
}

// take serves a new connection, and ends the old one. If greet is set, it first sends an empty Reply, which
// tells the control process that the engine serves.
func (c *connections) take(conn *net.UnixConn, greet bool) {
	if c.old != nil {
		c.replaced.Store(true)
		hangUp(c.old)
	}
	<-c.done
	c.old, c.replaced, c.done = conn, new(atomic.Bool), make(chan struct{})
	c.attached.Store(true)
	go func(replaced *atomic.Bool, done chan struct{}) {
		defer close(done)
		defer func() { c.attached.Store(replaced.Load()) }()
		defer hangUp(conn)
		if greet {
			_ = sendMessage(conn, Reply{}, nil)
		}
		if errors.Is(c.converse(conn), errStop) || !replaced.Load() && c.useless() {
			c.end()
		}
	}(c.replaced, c.done)
}

// end ends the method accept, and with it the engine.
func (c *connections) end() {
	c.stop.Do(func() { close(c.stopped) })
	// a closed listener ends accept; without a listener, accept ends when stopped is closed
	if l := c.listener.Load(); l != nil {
		l.Close()
	}
}

// obey ends the engine at a signal if no control process is connected. If one is connected, the signal
// may have gone to all processes of a service, and the engine must keep forwarding.
func (c *connections) obey(signals <-chan os.Signal) {
	for range signals {
		if !c.attached.Load() {
			c.end()
		}
	}
}

// useless reports whether the engine should end, because its control process has died and the next one has
// no use for it. That is so if the workers were never started, or if they were halted and another engine
// has begun to serve.
func (s *server) useless() bool { return s.workers == nil || s.halted && !s.serveAgain() }

// againLimit is how long a halted engine tries to serve again after the death of the control process. In
// this time the spare engine, which holds the lock, notices the death and ends. againEvery is the pause
// between two attempts.
const (
	againLimit = 2 * time.Second
	againEvery = 10 * time.Millisecond
)

// serveAgain makes a halted engine serve the state directory again. It returns false if another engine
// serves it.
func (s *server) serveAgain() bool {
	for end := time.Now().Add(againLimit); time.Now().Before(end); time.Sleep(againEvery) {
		if acquire(s.lock, false) == nil {
			return sign(s.lock) == nil
		}
	}
	return false
}

// serveOn makes the file in fds the engine's lock file. The control process sends this file if it takes the
// previous engine for stuck. This engine has then got the old lock just before, because the previous engine
// has ended after all.
func (s *server) serveOn(fds []int) {
	if len(fds) != 1 {
		closeAll(fds)
		return
	}
	s.lock = os.NewFile(uintptr(fds[0]), LockName) // Serve closes the old one, when the process ends
}

// hangUp ends a connection, even if the other process's duplicates of its descriptor stay open.
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

// errStop is the result of converse after OpStop.
var errStop = errors.New("stop")

// converse answers requests until the connection ends or OpStop has come.
func (s *server) converse(conn *net.UnixConn) error {
	var brought []int // descriptors of the next request that OpMore requests have brought
	defer func() { closeAll(brought) }()
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
		if req.Op == OpServe {
			s.serveOn(fds)
			continue
		}
		if req.Op == OpRecall {
			closeAll(fds)
			if err := s.recall(conn); err != nil {
				return err
			}
			continue
		}
		if req.Op == OpMore {
			var reply Reply
			if len(brought)+len(fds) > maxRequestDescriptors {
				reply.Error = fmt.Sprintf("more than %d descriptors of one request", maxRequestDescriptors)
				closeAll(append(brought, fds...)) // the request itself does not follow
				brought = nil
			} else {
				brought = append(brought, fds...)
			}
			if err := sendMessage(conn, reply, nil); err != nil {
				return err
			}
			continue
		}
		fds, brought = append(brought, fds...), nil
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
