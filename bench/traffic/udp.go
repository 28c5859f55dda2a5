// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// udpBuffer is the default size of a socket buffer in bytes, enough for what one core sends in some
// milliseconds.
const udpBuffer = 4 << 20

// udpTransport is a transport over the connected UDP socket of one stream.
type udpTransport struct{ *socket }

func (udpTransport) dress([]byte, uint64) {}
func (udpTransport) headers() int         { return 0 }

// listenUDP opens a UDP socket at a local address. The kernel chooses the port.
func listenUDP(local netip.Addr, buffer int) (fd, port int, err error) {
	fd, err = unix.Socket(family(local), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, 0, fmt.Errorf("UDP socket: %w", err)
	}
	fail := func(err error) (int, int, error) {
		unix.Close(fd)
		return -1, 0, fmt.Errorf("UDP socket at %s: %w", local, err)
	}
	if buffer == 0 {
		buffer = udpBuffer
	}
	if err := setBuffers(fd, buffer); err != nil {
		return fail(err)
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(local, 0))); err != nil {
		return fail(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return fail(err)
	}
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		port = a.Port
	case *unix.SockaddrInet6:
		port = a.Port
	}
	return fd, port, nil
}

// dialUDP opens a transport to a UDP port of the server.
func dialUDP(local netip.Addr, remote netip.AddrPort, s *Spec) (transport, error) {
	fd, _, err := listenUDP(local, s.SocketBuffer)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, sockaddr(remote)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("UDP to %s: %w", remote, err)
	}
	return udpTransport{newSocket(fd, s.largestFrame())}, nil
}

// acceptUDP connects the socket fd to the sender of the first hello frame. The transport owns the
// socket; after an error the socket is closed.
func acceptUDP(fd int, test uint32, expired func() bool, s *Spec) (transport, error) {
	buf := make([]byte, s.largestFrame())
	for !expired() {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		switch err {
		case nil:
			if st, ok := stampOf(buf[:n], 0, test); ok && st.kind() == kindHello {
				if err := unix.Connect(fd, from); err != nil {
					unix.Close(fd)
					return nil, fmt.Errorf("UDP: %w", err)
				}
				return udpTransport{newSocket(fd, s.largestFrame())}, nil
			}
		case unix.EAGAIN:
			if err := poll(fd, unix.POLLIN, idleWait); err != nil {
				unix.Close(fd)
				return nil, err
			}
		case unix.EINTR, unix.ECONNREFUSED:
		default:
			unix.Close(fd)
			return nil, fmt.Errorf("UDP: %w", err)
		}
	}
	unix.Close(fd)
	return nil, errNoHello
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: zone(a.Addr().Zone())}
}
