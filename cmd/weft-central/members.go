// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"time"

	"weft/central/store"
)

// memberIOTimeout limits the time of each read and write on a connection of another central. It is
// etcd's own limit (rafthttp.ConnReadTimeout). Members of etcd send something more often.
const memberIOTimeout = 5 * time.Second

// membersListener accepts connections of other centrals. Reads and writes on them have a time limit.
type membersListener struct{ net.Listener }

// Accept implements net.Listener. It returns a memberConn.
func (l membersListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return memberConn{c}, nil
}

// memberConn is a connection whose reads and writes take at most memberIOTimeout.
type memberConn struct{ net.Conn }

// Read implements net.Conn. It fails after memberIOTimeout.
func (c memberConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(memberIOTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn. It fails after memberIOTimeout.
func (c memberConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(memberIOTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// listenMembers starts to accept connections of other centrals for etcd, at the address c.Peer.
func (c *central) listenMembers(files store.TLSFiles) error {
	config, err := files.Server()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Peer)
	if err != nil {
		return err
	}
	c.members = newFront(membersListener{listener}, config, limitsOfMembers)
	go func() { _ = c.members.run() }()
	return nil
}
