// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/privilege"
)

// Shortest and longest wait between two attempts to connect. Each wait is twice the
// previous one.
const (
	backoffFirst = 100 * time.Millisecond
	backoffMax   = time.Second
)

type backoff struct{ next time.Duration }

func newBackoff() *backoff { return &backoff{next: backoffFirst} }

// wait sleeps for the interval b.next, then doubles the interval up to backoffMax. It returns early
// when ctx is done.
func (b *backoff) wait(ctx context.Context) {
	t := time.NewTimer(b.next)
	defer t.Stop()
	b.next = min(2*b.next, backoffMax)
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// listen makes the listening socket at a path. It replaces a stale socket, and
// refuses a path with a listening process or with another kind of file.
func listen(path string, access SocketAccess) (*net.UnixListener, error) {
	n, err := openSocketName(path)
	if err != nil {
		return nil, fmt.Errorf("vhost: %w", err)
	}
	defer n.close()
	switch old, err := n.open(); {
	case errors.Is(err, errNoSocket):
		return nil, fmt.Errorf("vhost: %s %w", path, err)
	case err == nil:
		conn, err := net.DialUnix("unix", nil, addressOf(old))
		if err == nil {
			conn.Close()
		}
		old.Close()
		if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, fmt.Errorf("vhost: %s is in use: another process listens on it", path)
		}
		if err := n.remove(); err != nil {
			return nil, fmt.Errorf("vhost: %s: dead socket: %w", path, err)
		}
	}
	l, err := net.ListenUnix("unix", n.address())
	if err != nil {
		return nil, fmt.Errorf("vhost: %s: %w", path, errnoOf(err))
	}
	// The file of the socket stays, because the next control process may use it.
	// Session.Close removes it.
	l.SetUnlinkOnClose(false)
	if err := access.apply(n); err != nil {
		l.Close()
		_ = n.remove()
		return nil, fmt.Errorf("vhost: %s: %w", path, err)
	}
	control(l, func(fd int) { _ = unix.Listen(fd, maxBacklog) })
	return l, nil
}

// connected returns the connection to the front end. Without a connection, a session
// in client mode connects to the front end's socket, and a session in server mode
// waits for a front end.
func (s *Session) connected(ctx context.Context) (*net.UnixConn, error) {
	s.mu.Lock()
	conn, listener := s.conn, s.listener
	s.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	var err error
	if s.cfg.Client {
		conn, err = dial(ctx, s.cfg.Path)
	} else {
		conn, err = accept(ctx, listener)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.conn, s.lastError, s.stale[0] = conn, "", true
	s.connects++
	s.mu.Unlock()
	s.heard = false
	s.log.Info("vhost-user: front end connected")
	s.tellChanged()
	return conn, nil
}

// dial connects to the front end's socket at a path. If the file permissions deny the
// access, the error says what to change.
func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	conn, err := dialSocket(ctx, path)
	return conn, privilege.Explain(err, "make this user a member of the socket's group, and let the group search the directory and write to the socket")
}

func dialSocket(ctx context.Context, path string) (*net.UnixConn, error) {
	n, err := openSocketName(path)
	if err != nil {
		return nil, err
	}
	defer n.close()
	socket, err := n.open()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer socket.Close()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", addressOf(socket).Name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, errnoOf(err))
	}
	return conn.(*net.UnixConn), nil
}

func accept(ctx context.Context, l *net.UnixListener) (*net.UnixConn, error) {
	if err := l.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	// When ctx is done, a deadline in the past ends the accept.
	defer context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return l.AcceptUnix()
}
