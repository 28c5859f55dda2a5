// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is the kernel's struct mmsghdr (include/linux/socket.h).
type mmsghdr struct {
	unix.Msghdr
	n uint32
	_ uint32
}

var _ [64]byte = [unsafe.Sizeof(mmsghdr{})]byte{}

// socket is a non-blocking UDP or packet socket. One goroutine may send while another
// receives.
type socket struct {
	fd       int
	out, in  [batch]mmsghdr
	outVec   [batch]unix.Iovec
	inVec    [batch]unix.Iovec
	bufs     [][]byte
	received [][]byte
}

// newSocket returns a socket for frames of at most size bytes. It owns the descriptor fd.
func newSocket(fd, size int) *socket {
	s := &socket{fd: fd, received: make([][]byte, 0, batch)}
	for i := range batch {
		s.bufs = append(s.bufs, make([]byte, size))
		s.inVec[i].Base = &s.bufs[i][0]
		s.inVec[i].SetLen(size)
		s.in[i].Iov, s.out[i].Iov = &s.inVec[i], &s.outVec[i]
		s.in[i].SetIovlen(1)
		s.out[i].SetIovlen(1)
	}
	return s
}

func (s *socket) close() { unix.Close(s.fd) }

func (s *socket) send(frames [][]byte) (int, error) {
	n := min(len(frames), batch)
	for i, f := range frames[:n] {
		s.outVec[i].Base = &f[0]
		s.outVec[i].SetLen(len(f))
	}
	for {
		r, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.out[0])), uintptr(n), 0, 0, 0)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
			continue
		case unix.ECONNREFUSED:
			continue // the kernel reports the error of an earlier datagram once
		case unix.EAGAIN, unix.ENOBUFS:
			return 0, poll(s.fd, unix.POLLOUT, time.Millisecond)
		default:
			return 0, fmt.Errorf("send: %w", errno)
		}
	}
}

func (s *socket) recv(wait time.Duration) ([][]byte, error) {
	for {
		r, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.in[0])), batch, 0, 0, 0)
		switch errno {
		case 0:
			s.received = s.received[:0]
			for i := range int(r) {
				s.received = append(s.received, s.bufs[i][:s.in[i].n])
			}
			return s.received, nil
		case unix.EINTR, unix.ECONNREFUSED:
			continue
		case unix.EAGAIN:
			if wait <= 0 {
				return nil, nil
			}
			if err := poll(s.fd, unix.POLLIN, wait); err != nil {
				return nil, err
			}
			wait = 0
		default:
			return nil, fmt.Errorf("receive: %w", errno)
		}
	}
}

func poll(fd int, events int16, wait time.Duration) error {
	t := unix.NsecToTimespec(wait.Nanoseconds())
	_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: events}}, &t, nil)
	if err == unix.EINTR {
		return nil
	}
	return err
}

// SO_MEMINFO returns an array of counters (include/uapi/linux/sock_diag.h), of which only the number
// of dropped frames is used here.
const (
	meminfoWords = 9
	meminfoDrops = 8
)

func (s *socket) dropped() uint64 {
	var words [meminfoWords]uint32
	size := uint32(unsafe.Sizeof(words))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&words)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 || uintptr(size) < unsafe.Sizeof(words) {
		return 0
	}
	return uint64(words[meminfoDrops])
}

// setBuffers sets both socket buffers to n bytes. With CAP_NET_ADMIN they may exceed the system's
// limit.
func setBuffers(fd, n int) error {
	for _, o := range []struct{ force, plain int }{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.force, n) == nil {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.plain, n); err != nil {
			return fmt.Errorf("socket buffer of %d bytes: %w", n, err)
		}
	}
	return nil
}

func usage() (user, system time.Duration) {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0, 0
	}
	return time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())
}
