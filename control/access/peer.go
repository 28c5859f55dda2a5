// SPDX-License-Identifier: Apache-2.0

// Package access protects the API. It derives the role of a peer (a client) from the peer's
// credentials. It limits the peer's connections, expensive requests and bodies, and sets deadlines.
// Package control has the handlers.
//
// A connection passes the Listener, which identifies the peer and applies the
// connection quota. A request passes the Mux, which checks the role, applies the other
// limits and logs the request.
//
// Requests, in patience.go, limits how long a client waits for an answer. When the time is over, the
// request is abandoned: the client gets an error that says what delays the request, and the request
// continues in the background, because a change cannot be undone halfway.
package access

import (
	"fmt"
	"net"
	"slices"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// Role is a peer's permission. A higher role includes all lower roles.
type Role uint8

const (
	None  Role = iota // no request is allowed
	Read              // Read permits requests that change nothing and show no payload of frames.
	Write             // all requests
)

var roleNames = [...]string{"none", "read", "write"}

func (r Role) String() string { return roleNames[r] }

// ParseRole parses the name of a role. "all" means "write". ok is false for another word.
func ParseRole(word string) (Role, bool) {
	if word == "all" {
		return Write, true
	}
	i := slices.Index(roleNames[:], word)
	return Role(max(i, 0)), i >= 0
}

// Peer is the client at the other end of a connection.
type Peer struct {
	Role Role
	// Share is the name under which quotas count the peer: a user, a vsock CID or an address.
	Share string
	// Name is Share together with the process or the port, for logs and errors.
	Name string
}

// NoGroup is the group ID in a Policy that stands for no group.
const NoGroup = -1

// Policy says which role a peer with given credentials has. Its zero value is unsafe: it gives the role
// Write to every member of the group root, whose ID is 0.
type Policy struct {
	UID        int // user of the daemon
	WriteGroup int // NoGroup: no such group
	ReadGroup  int // NoGroup: no such group
	CIDs       map[uint32]Role
}

// Unix returns the role of a local process that runs as user uid with the groups gids.
func (p *Policy) Unix(uid uint32, gids []uint32) Role {
	member := func(group int) bool { return group >= 0 && slices.Contains(gids, uint32(group)) }
	switch {
	case uid == 0, int64(uid) == int64(p.UID), member(p.WriteGroup):
		return Write
	case member(p.ReadGroup):
		return Read
	}
	return None
}

// DefaultCIDs returns the default roles of vsock peers, by CID. Only the host has a role, Write. CID 1
// stands for any process of this machine, including the virtual machine monitors of guests. Higher
// CIDs are guests.
func DefaultCIDs() map[uint32]Role { return map[uint32]Role{vsock.Host: Write} }

// Identify returns the peer of an accepted connection, with its role. It does not block.
func (p *Policy) Identify(c net.Conn) Peer {
	switch a := c.RemoteAddr().(type) {
	case *vsock.Addr:
		share := fmt.Sprintf("cid %d", a.ContextID)
		return Peer{Role: p.CIDs[a.ContextID], Share: share, Name: share}
	case *net.TCPAddr:
		share := a.AddrPort().Addr().Unmap().WithZone("").String()
		return Peer{Share: share, Name: a.String()}
	}
	unknown := Peer{Share: "unknown", Name: "unknown"}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return unknown
	}
	cred, gids, err := credentials(u)
	if err != nil {
		return unknown
	}
	share := fmt.Sprintf("uid %d", cred.Uid)
	return Peer{Role: p.Unix(cred.Uid, gids), Share: share, Name: fmt.Sprintf("%s pid %d", share, cred.Pid)}
}

// credentials returns the user and the groups that the peer's process had when it
// connected (unix(7): SO_PEERCRED, SO_PEERGROUPS).
func credentials(c *net.UnixConn) (cred *unix.Ucred, gids []uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed == nil {
			gids, failed = peerGroups(int(fd))
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, nil, err
	}
	return cred, append(gids, cred.Gid), nil
}
