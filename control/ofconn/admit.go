// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"net"
	"net/netip"
)

// This file decides which connections may stay when there are too many.

const (
	// maxLocalConnections limits the connections to the unix socket, maxRemoteConnections
	// those to all TCP and TLS listeners: remote peers leave the local ones theirs. At a
	// limit, the oldest connection without a hello makes room. If each has said hello, the
	// new connection is closed and counted.
	maxLocalConnections  = 128
	maxRemoteConnections = 128
	// maxPeerConnections limits the connections of one local user, maxAddressConnections
	// those from one IPv4 address or one IPv6 prefix of 64 bits. At the limit, the oldest of
	// the same peer without a hello makes room.
	maxPeerConnections    = 96
	maxAddressConnections = 32
)

// origin tells how a connection came about.
type origin uint8

const (
	dialed origin = iota // the switch connected to a controller
	local                // a peer connected to the unix socket
	remote               // a peer connected to a TCP or TLS listener
	origins
)

// maxConnections has the limit of all connections of an origin, maxHolder of one peer.
// Controllers are limited by MaxControllers instead.
var (
	maxConnections = [origins]int{local: maxLocalConnections, remote: maxRemoteConnections}
	maxHolder      = [origins]int{local: maxPeerConnections, remote: maxAddressConnections}
)

// originOf returns the origin of an accepted connection.
func originOf(nc net.Conn) origin {
	if _, unix := nc.(*net.UnixConn); unix {
		return local
	}
	return remote
}

// holderOf returns the name under which the connections of a peer are counted. One host
// can have every address of an IPv6 prefix of 64 bits.
func holderOf(a net.Addr, peer string) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return peer
	}
	address := tcp.AddrPort().Addr().Unmap().WithZone("")
	if address.Is4() {
		return peer
	}
	return netip.PrefixFrom(address, 64).Masked().String()
}

// enter registers a connection. It returns false if a limit is reached, or after Close.
func (s *Service) enter(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if c.origin != dialed {
		sameHolder := func(present *Conn) bool { return present.holder == c.holder }
		if s.holders[c.holder] >= maxHolder[c.origin] && !s.makeRoom(c.origin, sameHolder) {
			return false
		}
		if s.accepted[c.origin] >= maxConnections[c.origin] && !s.makeRoom(c.origin, s.isOfLargest(c.origin)) {
			return false
		}
		s.holders[c.holder]++
	}
	s.accepted[c.origin]++
	s.entered++
	c.entered = s.entered
	s.conns[c] = struct{}{}
	return true
}

// makeRoom closes the oldest connection without a hello that the function
// candidate selects. It returns false if there is none.
func (s *Service) makeRoom(o origin, candidate func(*Conn) bool) bool {
	var oldest *Conn
	for c := range s.conns {
		if c.origin == o && !c.greeted && candidate(c) && (oldest == nil || c.entered < oldest.entered) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	s.counts.GaveWay.Add(1)
	s.forget(oldest)
	oldest.net.Close() // a TLS connection before its handshake closes without a write
	return true
}

// isOfLargest returns a function that selects the connections of the peer with the most
// connections without a hello.
func (s *Service) isOfLargest(o origin) func(*Conn) bool {
	silent, largest := map[string]int{}, ""
	for c := range s.conns {
		if c.origin == o && !c.greeted {
			if silent[c.holder]++; silent[c.holder] > silent[largest] {
				largest = c.holder
			}
		}
	}
	return func(c *Conn) bool { return c.holder == largest }
}

// greet notes that the peer has said hello, and so no longer makes room for others. It
// returns false if the connection has made room already.
func (s *Service) greet(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.greeted = true
	_, present := s.conns[c]
	return present
}

func (s *Service) leave(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
}

// forget removes a connection from the list if it is there.
func (s *Service) forget(c *Conn) {
	if _, present := s.conns[c]; !present {
		return
	}
	delete(s.conns, c)
	s.accepted[c.origin]--
	if c.origin == dialed {
		return
	}
	if s.holders[c.holder]--; s.holders[c.holder] == 0 {
		delete(s.holders, c.holder)
	}
}
