package vhost

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// closeWait is how long Session.Close waits for the descriptors of a front end to
// close. What takes longer closes by itself later.
const closeWait = 100 * time.Millisecond

// dispose does work that closes descriptors of the front end, and waits for it until
// ctx is done. The owner of a descriptor can make its close wait: a file system in user
// space by not answering, a TCP socket that lingers, memory of many gigabytes by being
// freed. So it happens on a goroutine of its own and without the session's lock. Each
// waits for the one before: a front end holds one thread at most, and its own port.
//
// The engine must have forgotten its duplicates before: whoever closes the last one
// waits.
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

// sweep disposes of what a message has left over: descriptors that it brought in vain,
// and those that it replaced.
func (s *Session) sweep(w *wire) {
	s.mu.Lock()
	fds := append(w.waste, s.front.dropped...)
	w.waste, s.front.dropped = nil, nil
	s.mu.Unlock()
	if len(fds) > 0 {
		s.dispose(w.stop, func() { closeAll(fds) })
	}
}

// shut ends a connection for both sides. It does not wait.
func shut(conn *net.UnixConn) {
	_ = conn.CloseRead()
	_ = conn.CloseWrite()
}

// hangUp closes a connection that is shut. Messages that nobody has read may carry
// descriptors, which close with the last reference to them: they are read away first,
// so that closing a duplicate of the connection is harmless from then on.
func hangUp(conn *net.UnixConn) {
	control(conn, drain)
	conn.Close()
}

// drain reads a shut socket empty. Without a control buffer the kernel drops the
// descriptors (unix(7)).
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

// hangUpListener closes a listening socket, having drained the connections that nobody
// has accepted.
func hangUpListener(l *net.UnixListener) {
	control(l, func(fd int) {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // from here on no connection comes
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
