// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// carrier sends and receives the datagrams of a replica or of the client, by a UDP socket or as a
// vhost-user guest.
type carrier interface {
	// receive waits for datagrams until the time limit. The datagrams are valid until
	// the next call.
	receive(limit time.Duration) ([][]byte, error)
	// send sends a datagram, or queues it until flush is called.
	send(to int, datagram []byte) error
	flush()
	close()
}

// udpPort is the UDP port of all replicas and of the client.
const udpPort = 5211

// socket is a carrier with a UDP socket. It makes the system calls of an event loop:
// epoll_wait, recvfrom and sendto.
type socket struct {
	fd, epoll int
	to        []unix.Sockaddr
	bufs      [][]byte
	received  [][]byte
	events    [1]unix.EpollEvent
}

// batch is the largest number of datagrams that a member handles between two sends.
const batch = 64

func openSocket(own int, addresses []netip.Addr) (*socket, error) {
	s := &socket{fd: -1, epoll: -1}
	for _, a := range addresses {
		s.to = append(s.to, &unix.SockaddrInet4{Port: udpPort, Addr: a.As4()})
	}
	for range batch {
		s.bufs = append(s.bufs, make([]byte, messageSize))
	}
	var err error
	if s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("UDP socket: %w", err)
	}
	if err = unix.Bind(s.fd, s.to[own]); err == nil {
		if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
			err = unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)})
		}
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("UDP socket at %s: %w", addresses[own], err)
	}
	return s, nil
}

func (s *socket) receive(wait time.Duration) ([][]byte, error) {
	if _, err := unix.EpollWait(s.epoll, s.events[:], int(wait.Milliseconds())); err != nil && err != unix.EINTR {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	s.received = s.received[:0]
	for i := 0; i < batch; {
		n, _, err := unix.Recvfrom(s.fd, s.bufs[i], 0)
		switch err {
		case nil:
			s.received = append(s.received, s.bufs[i][:n])
			i++
		case unix.EINTR, unix.ECONNREFUSED: // ECONNREFUSED reports that an earlier datagram found no socket
		case unix.EAGAIN:
			return s.received, nil
		default:
			return nil, fmt.Errorf("receive: %w", err)
		}
	}
	return s.received, nil
}

func (s *socket) send(to int, datagram []byte) error {
	for {
		switch err := unix.Sendto(s.fd, datagram, 0, s.to[to]); err {
		case unix.EINTR, unix.ECONNREFUSED:
		case nil, unix.EAGAIN, unix.ENOBUFS: // datagrams are lost if the queue is full
			return nil
		default:
			return fmt.Errorf("send: %w", err)
		}
	}
}

func (s *socket) flush() {}

func (s *socket) close() {
	unix.Close(s.epoll)
	unix.Close(s.fd)
}
