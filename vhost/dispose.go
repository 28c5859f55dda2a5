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

// dispose runs work, a function that closes descriptors of the front end. It waits until work has finished
// or ctx is done. The front end can delay a close for as long as it likes. So work runs on a goroutine of
// its own, without the session's lock. The goroutine first waits for the work of the session's previous
// call of dispose.
//
// The caller makes sure that the engine has closed its duplicates before. Only the close of a file's last
// duplicate can block, and the engine must not block.
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

// sweep closes, through dispose, descriptors that no message handler has taken, and descriptors that a
// message has replaced.
func (s *Session) sweep(w *wire) {
	s.mu.Lock()
	fds := append(w.waste, s.front.dropped...)
	w.waste, s.front.dropped = nil, nil
	s.mu.Unlock()
	if len(fds) > 0 {
		s.dispose(w.stop, func() { closeAll(fds) })
	}
}

func shut(conn *net.UnixConn) {
	_ = conn.CloseRead()
	_ = conn.CloseWrite()
}

// hangUp closes a connection that is already shut down. It first reads all remaining
// messages, because closing the descriptors in them may block.
func hangUp(conn *net.UnixConn) {
	control(conn, drain)
	conn.Close()
}

// drain discards all remaining data of a socket. Without a control buffer the kernel
// closes the descriptors that come with the data (unix(7)).
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

func control(c syscall.Conn, fn func(fd int)) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { fn(int(fd)) })
	}
}
