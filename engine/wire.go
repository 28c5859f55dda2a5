// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxRequest is the length of the longest message in bytes; a longer one is refused. The kernel's
// default socket buffer takes such a message in one packet.
const maxRequest = 128 << 10

// maxPath is the longest path in a socket address (sun_path without its NUL).
const maxPath = 107

type received struct {
	reply Reply
	fds   []int
}

// sendMessage sends v, in JSON, as one packet with duplicates of fds.
func sendMessage(conn *net.UnixConn, v any, fds []int) error {
	msg, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	if len(msg) > maxRequest {
		return fmt.Errorf("engine: message of %d bytes: the limit is %d", len(msg), maxRequest)
	}
	if len(fds) > maxDescriptors {
		return fmt.Errorf("engine: %d descriptors in one message: the limit is %d", len(fds), maxDescriptors)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(msg, rights, nil)
	return err
}

// buffers has message buffers for reuse, so that a replacement of the engine causes no garbage
// collection.
var buffers = sync.Pool{New: func() any { return new([maxRequest]byte) }}

// receiveMessage receives one packet and decodes it into v. malformed is an error in the packet's
// content, err an error of the connection. The caller owns the descriptors fds in every case.
func receiveMessage(conn *net.UnixConn, v any) (fds []int, malformed error, err error) {
	buffer := buffers.Get().(*[maxRequest]byte)
	defer buffers.Put(buffer) // JSON decoding copies all data out of the buffer
	msg := buffer[:]
	oob := make([]byte, unix.CmsgSpace(4*maxDescriptors))
	n, nOOB, flags, _, err := conn.ReadMsgUnix(msg, oob)
	if err != nil {
		return nil, nil, err
	}
	fds = parseRights(oob[:nOOB])
	if n == 0 && nOOB == 0 {
		return nil, nil, net.ErrClosed // the other end has closed the connection
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return fds, fmt.Errorf("message truncated: more than %d bytes or %d descriptors, or no descriptors left", maxRequest, maxDescriptors), nil
	}
	if err := json.Unmarshal(msg[:n], v); err != nil {
		return fds, fmt.Errorf("message of %d bytes: %w", n, err), nil
	}
	return fds, nil, nil
}

func receive(conn *net.UnixConn) (received, error) {
	var r received
	fds, malformed, err := receiveMessage(conn, &r.reply)
	if err == nil && malformed != nil {
		closeAll(fds)
		err = malformed
	}
	r.fds = fds
	return r, err
}

func parseRights(oob []byte) []int {
	var fds []int
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// fileConn returns a connection for the descriptor of a socket. It owns the descriptor.
func fileConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "connection")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("%T is no unix socket", conn)
	}
	return c, nil
}

// peer returns the process id of the other end of conn, and a pidfd of that process, which the caller
// owns.
func peer(conn *net.UnixConn) (pid, pidfd int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, -1, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil {
		return 0, -1, cerr
	}
	if err != nil {
		return 0, -1, fmt.Errorf("peer of the socket: %w", err)
	}
	pidfd, err = unix.PidfdOpen(int(cred.Pid), 0)
	if err != nil {
		return 0, -1, fmt.Errorf("pidfd of %d: %w", cred.Pid, err)
	}
	return int(cred.Pid), pidfd, nil
}

// dialSocket connects to the socket at path. If the path is too long for a socket address, it connects
// by a path below /proc/self/fd.
func dialSocket(path string) (*net.UnixConn, error) {
	short, done, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: short, Net: "unixpacket"})
}

func listenSocket(path string) (*net.UnixListener, error) {
	short, done, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	// The umask sets the mode of the socket. A chmod afterwards would be too late:
	// others might have connected already.
	old := syscall.Umask(0o177)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: short, Net: "unixpacket"})
	syscall.Umask(old)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

func shortPath(path string) (short string, release func(), err error) {
	if len(path) <= maxPath {
		return path, func() {}, nil
	}
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", filepath.Dir(path), err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(path)), func() { unix.Close(fd) }, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// duplicate returns duplicates of all fds, or an error and no descriptors.
func duplicate(fds []int) ([]int, error) {
	dups := make([]int, 0, len(fds))
	for _, fd := range fds {
		d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			closeAll(dups)
			return nil, fmt.Errorf("duplicate a descriptor: %w", err)
		}
		dups = append(dups, d)
	}
	return dups, nil
}
