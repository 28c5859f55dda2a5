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

// maxBacklog is the number of connections that may wait while a front end is served; a
// further one is refused by the kernel (EAGAIN), or waits to connect. One is for a front
// end that is started again before its end is noticed.
const maxBacklog = 4

// socketName is a socket's name in its directory. The directory may belong to the guest's
// user: it was reached without a link that another user than root could have made, and
// what happens to the name happens in that directory, whatever the path says by then.
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

// address is the name for bind, which follows no link in its last part (it makes it).
func (n *socketName) address() *net.UnixAddr {
	return &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", n.dir.Fd(), n.name), Net: "unix"}
}

// open returns a descriptor of the socket itself (O_PATH), not of what a link names.
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

// remove unlinks the name if it is a socket's. A directory is never removed.
func (n *socketName) remove() error {
	f, err := n.open()
	if err != nil {
		return err
	}
	f.Close()
	return unix.Unlinkat(int(n.dir.Fd()), n.name, 0)
}

// addressOf connects to a socket that open has opened.
func addressOf(f *os.File) *net.UnixAddr {
	return &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d", f.Fd()), Net: "unix"}
}

// errnoOf is the error number without net's words, which name a descriptor.
func errnoOf(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// removeSocket removes the socket at a path, if there is one.
func removeSocket(path string) {
	if n, err := openSocketName(path); err == nil {
		_ = n.remove()
		n.close()
	}
}
