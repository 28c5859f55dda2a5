// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"weft/internal/safepath"
)

// maxBacklog is the number of connections that may wait while the session serves a
// front end. A further connect fails with EAGAIN or blocks.
const maxBacklog = 4

// socketName is the name of a socket in a directory that is already open. Later changes of the path
// therefore do not lead to another directory. The directory was opened without following symbolic
// links that users other than root could have made.
type socketName struct {
	dir  *os.File
	name string
}

func openSocketName(path string) (*socketName, error) {
	dir, err := safepath.Dir(filepath.Dir(path), 0)
	if err != nil {
		return nil, err
	}
	return &socketName{dir, filepath.Base(path)}, nil
}

func (n *socketName) close() { n.dir.Close() }

// address returns the socket's address for bind(2), which follows no symbolic link at the end of a
// path.
func (n *socketName) address() *net.UnixAddr {
	return &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", n.dir.Fd(), n.name), Net: "unix"}
}

// open returns an O_PATH descriptor of the socket, without following a link.
func (n *socketName) open() (*os.File, error) {
	fd, err := unix.Openat(int(n.dir.Fd()), n.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), n.name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		f.Close()
		return nil, errNoSocket
	}
	return f, nil
}

var errNoSocket = errors.New("exists and is no socket")

// remove unlinks the name if it is a socket. It never removes a directory.
func (n *socketName) remove() error {
	f, err := n.open()
	if err != nil {
		return err
	}
	f.Close()
	return unix.Unlinkat(int(n.dir.Fd()), n.name, 0)
}

func addressOf(f *os.File) *net.UnixAddr {
	return &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d", f.Fd()), Net: "unix"}
}

// errnoOf returns the error number in err, or err itself if it has none. The error texts of package net
// would have the address /proc/self/fd/N instead of the socket's path.
func errnoOf(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// removeSocket removes the socket at a path, if the file there is one.
func removeSocket(path string) {
	if n, err := openSocketName(path); err == nil {
		_ = n.remove()
		n.close()
	}
}
