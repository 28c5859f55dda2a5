// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"net"
	"net/netip"
)

// This file decides which connections the switch keeps when peers open too many.

const (
	// maxLocalConnections limits the connections to the unix socket. maxRemoteConnections limits the
	// connections to all TCP and TLS listeners, so that remote peers cannot use up the local
	// connections. At a limit, the switch closes a connection whose peer has not said hello: the
	// oldest one of the peer with the most such connections. If every peer has said hello, the switch
	// closes and counts the new connection.
	maxLocalConnections  = 128
	maxRemoteConnections = 128
	// maxPeerConnections limits the connections of one local user. maxAddressConnections limits
	// those from one IPv4 address or one IPv6 prefix of 64 bits. At the limit, the switch closes
	// the peer's oldest connection without a hello.
	maxPeerConnections    = 96
	maxAddressConnections = 32
)

// origin is the side that opened a connection: the switch, a local peer or a remote peer.
type origin uint8

const (
	dialed origin = iota // the switch connected to a controller
	local                // a peer connected to the unix socket
	remote               // a peer connected to a TCP or TLS listener
	origins
)

// maxConnections limits the connections of each origin, and maxHolder the connections of one peer.
// The dialed connections have no limit here, because there is one for each controller
// (MaxControllers).
var (
	maxConnections = [origins]int{local: maxLocalConnections, remote: maxRemoteConnections}
	maxHolder      = [origins]int{local: maxPeerConnections, remote: maxAddressConnections}
)

func originOf(nc net.Conn) origin {
	if _, unix := nc.(*net.UnixConn); unix {
		return local
	}
	return remote
}

// holderOf returns the name under which the connections of a peer are counted. It is the user of a
// local peer, and the address of a remote peer. An IPv6 address counts as its prefix of 64 bits,
// because one host can use every address in the prefix.
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

// enter adds a connection to the service's list. It returns false if a limit is reached, or
// after Close.
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

// makeRoom closes a connection whose peer has not said hello: the oldest one for which the function
// "candidate" returns true. It returns false if there is none.
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
	oldest.net.Close() // does not block: before its handshake, a TLS connection closes without a write
	return true
}

// isOfLargest finds the peer that has the most connections without a hello. It returns a function
// that reports whether a connection belongs to this peer.
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

// greet notes that the peer has said hello, so that makeRoom no longer closes the connection.
// It returns false if makeRoom has closed it already.
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

// forget removes a connection from the service's list if it is there.
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
