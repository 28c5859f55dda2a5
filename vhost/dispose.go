// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// closeWait is how long Session.Close waits for the descriptors of a front end to
// close. Descriptors that take longer are closed later, in the background.
const closeWait = 100 * time.Millisecond

// dispose runs a function that closes descriptors of the front end, and waits until
// the function has finished or ctx is done. Whoever shares a descriptor's file can
// delay its close: a file system in user space by not answering, a TCP socket by
// lingering, many gigabytes of memory by the time to free them. Each function
// therefore runs on its own goroutine, without the session's lock, after the previous
// function of the session. A front end thus blocks at most one thread, and only its
// own port.
//
// The engine must close its duplicates of the descriptors before dispose runs,
// because the process that closes the last duplicate of a file waits.
func (s *Session) dispose(ctx context.Context, work func()) {
	done := make(chan struct{})
	s.mu.Lock()
	before := s.disposing
	s.disposing = done
	s.mu.Unlock()
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		work()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// sweep disposes of two kinds of descriptors: those that a message brought and no
// handler took, and those that a message has replaced.
func (s *Session) sweep(w *wire) {
	s.mu.Lock()
	fds := append(w.waste, s.front.dropped...)
	w.waste, s.front.dropped = nil, nil
	s.mu.Unlock()
	if len(fds) > 0 {
		s.dispose(w.stop, func() { closeAll(fds) })
	}
}

// shut shuts a connection down in both directions. It does not wait.
func shut(conn *net.UnixConn) {
	_ = conn.CloseRead()
	_ = conn.CloseWrite()
}

// hangUp closes a connection that is shut down. It first reads all remaining
// messages, so that the descriptors in these messages are closed now. Otherwise the
// kernel would close them together with the last duplicate of the connection, and
// that close could block.
func hangUp(conn *net.UnixConn) {
	control(conn, drain)
	conn.Close()
}

// drain reads all remaining data of a socket. The read has no control buffer, so the
// kernel closes the descriptors that come with the data (unix(7)).
func drain(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	var waste [4096]byte
	for {
		n, _, _, _, err := unix.Recvmsg(fd, waste[:], nil, unix.MSG_DONTWAIT)
		if err != unix.EINTR && (err != nil || n == 0) {
			return
		}
	}
}

// hangUpListener drains the connections that were not yet accepted, and closes the
// listening socket.
func hangUpListener(l *net.UnixListener) {
	control(l, func(fd int) {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // no connection arrives after this
		for {
			conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return
			}
			drain(conn)
			unix.Close(conn)
		}
	})
	l.Close()
}

func control(c syscall.Conn, do func(fd int)) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { do(int(fd)) })
	}
}
