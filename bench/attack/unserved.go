// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost/vhosttest"
)

// This file has attacks with memory in a FUSE file whose pages are never served. A thread that accesses
// a page waits until the file system ends (linux/fuse.h).

// FUSE request numbers (linux/fuse.h).
const (
	fuseLookup  = 1
	fuseGetattr = 3
	fuseOpen    = 14
	fuseRead    = 15
	fuseInit    = 26
	fuseFlush   = 25
	fuseRelease = 18
)

const unservedSize = 64 << 20

// unserved is a FUSE file system with one file. It is mounted in a mount namespace of a thread of its
// own.
type unserved struct {
	dev   int
	file  *os.File
	stop  chan struct{}
	ended chan struct{}
}

func mountUnserved() (*unserved, error) {
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/fuse: %w", err)
	}
	u := &unserved{dev: dev, stop: make(chan struct{}), ended: make(chan struct{})}
	go u.serve()
	mounted := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and the mount with the thread's namespace
		mounted <- u.mount()
	}()
	if err := <-mounted; err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

// mount mounts the file system on /mnt in a new mount namespace of the calling thread, and opens the
// file.
func (u *unserved) mount() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", u.dev)
	if err := unix.Mount("unserved", "/mnt", "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount fuse: %w", err)
	}
	fd, err := unix.Open("/mnt/memory", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open on fuse: %w", err)
	}
	u.file = os.NewFile(uintptr(fd), "unserved memory")
	return u.refuseFlush(fd)
}

// refuseFlush makes the kernel send no more FUSE flushes. They could deadlock a fork of this program:
// the child's close would wait for a flush that this process, the FUSE server, must answer.
func (u *unserved) refuseFlush(fd int) error {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(dup)
}

// close ends the file system. Threads that wait for a page then get SIGBUS.
func (u *unserved) close() {
	close(u.stop)
	<-u.ended
	unix.Close(u.dev)
	if u.file != nil {
		u.file.Close()
	}
}

func (u *unserved) serve() {
	defer close(u.ended)
	request := make([]byte, 1<<18)
	for {
		select {
		case <-u.stop:
			return
		default:
		}
		poll := []unix.PollFd{{Fd: int32(u.dev), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, 20); err != nil || n == 0 {
			continue
		}
		n, err := unix.Read(u.dev, request)
		if err == unix.EINTR || err == unix.ENOENT || err == unix.EAGAIN {
			continue
		}
		if err == unix.EPERM { // the file system is not mounted yet
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil || n < 40 {
			return
		}
		u.answer(request[:n])
	}
}

func (u *unserved) answer(request []byte) {
	opcode, unique := binary.LittleEndian.Uint32(request[4:]), binary.LittleEndian.Uint64(request[8:])
	node := binary.LittleEndian.Uint64(request[16:])
	switch opcode {
	case fuseInit:
		out := make([]byte, 64)
		binary.LittleEndian.PutUint32(out[0:], 7)
		binary.LittleEndian.PutUint32(out[4:], 31)
		binary.LittleEndian.PutUint32(out[20:], 1<<17) // max_write
		u.reply(unique, 0, out)
	case fuseLookup:
		u.reply(unique, 0, append(entryHead(), attr(2)...))
	case fuseGetattr:
		u.reply(unique, 0, append(make([]byte, 16), attr(node)...))
	case fuseOpen:
		u.reply(unique, 0, make([]byte, 16))
	case fuseFlush:
		u.reply(unique, -int32(unix.ENOSYS), nil) // ENOSYS: the kernel sends no more flush requests
	case fuseRelease:
		u.reply(unique, 0, nil)
	case fuseRead: // never answered: the reader waits
	default:
		u.reply(unique, -int32(unix.ENOSYS), nil)
	}
}

func entryHead() []byte {
	b := make([]byte, 40)
	b[0] = 2 // nodeid
	return b
}

func attr(node uint64) []byte {
	b := make([]byte, 88)
	mode, size := uint32(unix.S_IFREG|0o600), uint64(unservedSize)
	if node == 1 {
		mode, size = unix.S_IFDIR|0o755, 0
	}
	binary.LittleEndian.PutUint64(b[0:], node)
	binary.LittleEndian.PutUint64(b[8:], size)
	binary.LittleEndian.PutUint32(b[60:], mode)
	binary.LittleEndian.PutUint32(b[64:], 1)    // links
	binary.LittleEndian.PutUint32(b[80:], 4096) // block size
	return b
}

func (u *unserved) reply(unique uint64, errno int32, payload []byte) {
	b := make([]byte, 16, 16+len(payload))
	binary.LittleEndian.PutUint32(b[0:], uint32(16+len(payload)))
	binary.LittleEndian.PutUint32(b[4:], uint32(errno))
	binary.LittleEndian.PutUint64(b[8:], unique)
	_, _ = unix.Write(u.dev, append(b, payload...))
}

func unservedSetup(p *play) error {
	u, err := mountUnserved()
	if err != nil {
		return err
	}
	p.later(u.close)
	p.vars["file"] = u.file
	return echoPort()(p)
}

// unservedMemory passes the FUSE file to the switch in turn as guest memory, as migration log and as
// in-flight buffer.
func unservedMemory(p *play) error {
	return p.negotiated(func(g *vhosttest.Guest, f *vhosttest.FrontEnd) error {
		fd := int(p.vars["file"].(*os.File).Fd())
		switch p.repeats % 3 {
		case 1:
			_, _ = logBase(f, 1<<20, fd)
			return nil
		case 2:
			about := append(vhosttest.Number(1<<16), vhosttest.Number(0)...)
			_ = f.Send(32, vhosttest.Version, append(about, 2, 0, 64, 0, 0, 0, 0, 0), fd)
			return nil
		}
		if err := f.Send(vhosttest.SetMemTable, vhosttest.Version, table(g.Regions()[0]), fd); err != nil {
			return ignoreClosed(err)
		}
		if f.StartQueues(g, (*vhosttest.Queue).Start) != nil {
			return nil // no fault: the switch has closed the connection
		}
		held := &guest{Guest: g, front: f, play: p}
		for !p.expired() && !held.disconnected(50*1e6) {
		}
		return nil
	})
}
