// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// In these tests, a front end sends descriptors whose close never returns. No call may wait for such a
// close.

type stalled struct {
	name string
	make func(t *testing.T) int
}

var stalledKinds = []stalled{{"fuse", stalledFile}, {"tcp", lingeringSocket}}

// stalledFile opens a file on FUSE whose stat, statfs, page faults and flush block.
func stalledFile(t *testing.T) int {
	needRoot(t)
	dir := t.TempDir()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("stalled", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // aborts all blocked requests
		_ = unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)
		unix.Close(dev)
	})
	go serveOpen(dev)
	fd, err := unix.Open(filepath.Join(dir, "memory"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { go unix.Close(fd) }) // the last close, so it runs before the requests are aborted
	return fd
}

// serveOpen answers FUSE requests (linux/fuse.h) up to the first OPEN.
func serveOpen(dev int) {
	const lookup, getattr, open, hello = 1, 3, 14, 26
	request := make([]byte, 1<<18)
	for {
		n, err := unix.Read(dev, request)
		if err == unix.EINTR || err == unix.ENOENT {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		var out []byte
		opcode, node := binary.LittleEndian.Uint32(request[4:]), binary.LittleEndian.Uint64(request[16:])
		switch opcode {
		case hello:
			out = make([]byte, 64)
			binary.LittleEndian.PutUint32(out[0:], 7)
			binary.LittleEndian.PutUint32(out[4:], 31)
			binary.LittleEndian.PutUint32(out[20:], 1<<17) // max_write
		case lookup: // reply fuse_entry_out: a node and its attributes
			out = append(binary.LittleEndian.AppendUint64(nil, 2), make([]byte, 32)...)
			out = append(out, fuseAttr(2)...)
		case getattr:
			out = append(make([]byte, 16), fuseAttr(node)...)
		case open:
			out = make([]byte, 16)
		}
		reply := binary.LittleEndian.AppendUint32(nil, uint32(16+len(out)))
		reply = binary.LittleEndian.AppendUint32(reply, 0)
		reply = append(reply, request[8:16]...) // unique
		_, _ = unix.Write(dev, append(reply, out...))
		if opcode == open {
			return
		}
	}
}

func fuseAttr(node uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, node)
	b = append(b, make([]byte, 80)...)
	mode := uint32(unix.S_IFDIR | 0o755)
	if node != 1 {
		mode = unix.S_IFREG | 0o600
		binary.LittleEndian.PutUint64(b[8:], 1<<20)
	}
	binary.LittleEndian.PutUint32(b[60:], mode)
	binary.LittleEndian.PutUint32(b[64:], 1) // links
	return b
}

// lingeringSocket returns a TCP socket whose close waits, because it has SO_LINGER and unsent data.
func lingeringSocket(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f, err := near.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	near.Close()
	fd := int(f.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := unix.Write(fd, make([]byte, 1<<16)); err != nil {
			break
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	t.Cleanup(func() { far.Close() }) // resets the connection, which ends the close that waits
	return dup
}

// unread returns how many bytes wait in the session's socket. The kernel's overhead is included.
func unread(t *testing.T, f *vhosttest.FrontEnd) (n int) {
	raw, err := f.Conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestStalledClose: the close of a descriptor never returns. Even so, the session answers requests and
// ends, the next session can use the path, and other sessions go on.
func TestStalledClose(t *testing.T) {
	region := append(vhosttest.Pair(1, 0), vhosttest.Region(vhost.RegionSpec{Size: 4096})...)
	path := "" // path of the session's socket
	for _, kind := range stalledKinds {
		for name, send := range map[string]func(t *testing.T, f *vhosttest.FrontEnd, fd int) error{
			"memory": func(_ *testing.T, f *vhosttest.FrontEnd, fd int) error {
				return f.Send(vhosttest.SetMemTable, vhosttest.Version, region, fd)
			},
			"kick": func(_ *testing.T, f *vhosttest.FrontEnd, fd int) error {
				return f.Send(vhosttest.SetVringKick, vhosttest.Version, vhosttest.Number(0), fd)
			},
			"log descriptor, closed at once": func(_ *testing.T, f *vhosttest.FrontEnd, fd int) error {
				return f.Send(vhosttest.SetLogFD, vhosttest.Version, nil, fd)
			},
			"channel": func(_ *testing.T, f *vhosttest.FrontEnd, fd int) error {
				return f.Send(vhosttest.SetBackendReqFD, vhosttest.Version, nil, fd)
			},
			"not asked for": func(_ *testing.T, f *vhosttest.FrontEnd, fd int) error {
				return f.Send(vhosttest.SetOwner, vhosttest.Version, nil, fd)
			},
			"in half a header": func(_ *testing.T, f *vhosttest.FrontEnd, fd int) error {
				_, _, err := f.Conn.WriteMsgUnix([]byte{2, 0, 0, 0, 1}, unix.UnixRights(fd), nil)
				return err
			},
			"behind a message that closes the connection": func(_ *testing.T, f *vhosttest.FrontEnd, fd int) error {
				if err := f.Send(vhosttest.SetVringNum, vhosttest.Version, vhosttest.Pair(99, 1)); err != nil {
					return err
				}
				err := f.Send(vhosttest.SetMemTable, vhosttest.Version, region, fd)
				if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
					return nil // the session has already closed its socket, and never gets the descriptor
				}
				return err
			},
			"in a connection that waits": func(t *testing.T, f *vhosttest.FrontEnd, fd int) error {
				waiting, err := vhosttest.Dial(path)
				if err != nil {
					return err
				}
				t.Cleanup(waiting.Close)
				return waiting.Send(vhosttest.SetMemTable, vhosttest.Version, region, fd)
			},
		} {
			t.Run(kind.name+"/"+name, func(t *testing.T) {
				beside, r := newRig(t, false), newRig(t, false)
				g := guest(t, vhosttest.Options{Features: features})
				beside.attach(t, g)
				path = r.path
				fd := kind.make(t)
				f, err := vhosttest.Dial(r.path)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				eventually(t, "connection", func() bool { return r.Status().Connects == 1 })
				if err := send(t, f, fd); err != nil {
					t.Fatal(err)
				}
				if kind.name == "tcp" {
					// Closed in the background, because it may be the last close,
					// which lingers.
					go unix.Close(fd)
				}
				if !strings.HasPrefix(name, "behind") {
					eventually(t, "message read", func() bool { return unread(t, f) == 0 })
				}
				for range 100 {
					r.Status()
				}
				r.Close()
				beside.echo(t, g, 1)
				next, err := vhost.NewSession(r.config(false), r.engine)
				if err != nil {
					t.Fatal(err)
				}
				r.Session = next
				r.run(t)
				r.attach(t, guest(t, vhosttest.Options{Features: features}))
			})
		}
	}
}
