// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/privilege"
	"weft/internal/safepath"
)

// unixBacklog limits the connections that wait to be accepted. Further clients fail
// with EAGAIN or wait. net.core.somaxconn may be a lower limit.
const unixBacklog = 4096

// ListenUnix listens on the unix socket path. It sets the permissions of the socket file so that only
// peers with a role in the policy can connect, as far as permissions can express that. It replaces the
// socket file of a daemon that has died. An error is one line for the operator.
func ListenUnix(path string, p *Policy) (net.Listener, error) {
	dir, err := safepath.Dir(filepath.Dir(path), 0o755)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w; give its directory to user %s, or give another with --socket", path, cause(err), privilege.User())
	}
	dir.Close()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close() // the listener has its own duplicate of the descriptor
	// Linux's unix_bind gives the socket file the mode that Fchmod sets on the
	// descriptor (unix(7) does not mention it). Until the final mode is set, only the
	// daemon's user has access.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, fmt.Errorf("socket %s: mode: %w", path, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, fmt.Errorf("socket %s: %w; give its directory to user %s, or give another with --socket", path, err, privilege.User())
	}
	l := &unixListener{path: path}
	err = unix.Lstat(path, &l.id)
	if err == nil {
		err = p.open(path) // no peer may connect before the socket file has its final mode and group
	}
	if err == nil {
		err = unix.Listen(fd, unixBacklog)
	}
	if err == nil {
		l.Listener, err = net.FileListener(file)
	}
	if err != nil {
		l.unlink()
		return nil, fmt.Errorf("socket %s: %w", path, cause(err))
	}
	return l, nil
}

// removeStale removes the socket file of a dead daemon. It returns an error if a daemon
// listens there, or if the file is no socket.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return nil // bind reports the error
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("socket %s: the path exists and is not a socket; remove the file, or name another path with --socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return fmt.Errorf("socket %s: in use by another process; stop it, or give another with --socket", path)
	}
	if errors.Is(err, syscall.EACCES) {
		return fmt.Errorf("socket %s: belongs to another user, whose process may listen there; remove the file if no weftd runs", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("socket %s: %w", path, cause(err))
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("socket %s: %w", path, cause(err))
	}
	return nil
}

// open sets the mode and the group of the socket file so that peers with a role can connect. A file
// has only one group. So if the policy has two groups, everybody may connect, and Identify checks the
// credentials.
func (p *Policy) open(path string) error {
	group, mode := p.WriteGroup, uint32(0o660)
	switch {
	case p.WriteGroup < 0 && p.ReadGroup < 0:
		return nil
	case p.WriteGroup < 0:
		group = p.ReadGroup
	case p.ReadGroup >= 0 && p.ReadGroup != p.WriteGroup:
		mode = 0o666
	}
	// the descriptor stays valid even if path leads to another file later
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid() {
		return errors.New("was replaced by another user; give a directory that only root can change")
	}
	if err := unix.Fchownat(fd, "", -1, group, unix.AT_EMPTY_PATH); err != nil {
		if !privilege.Member(group) {
			err = fmt.Errorf("%w: user %s is no member of the group, and weftd lacks CAP_CHOWN", err, privilege.User())
		}
		return fmt.Errorf("group %d: %w", group, err)
	}
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode) // fchmod does not work with O_PATH
}

// unixListener is a listener that removes its socket file when it closes.
type unixListener struct {
	net.Listener
	path string
	id   unix.Stat_t
	once sync.Once
}

// Close implements net.Listener. It removes the socket file first.
func (l *unixListener) Close() error {
	l.once.Do(l.unlink)
	return l.Listener.Close()
}

// unlink removes the socket file, unless another daemon has replaced it by its own.
func (l *unixListener) unlink() {
	var now unix.Stat_t
	if unix.Lstat(l.path, &now) == nil && now.Dev == l.id.Dev && now.Ino == l.id.Ino {
		_ = os.Remove(l.path) // the file existed a moment ago
	}
}
