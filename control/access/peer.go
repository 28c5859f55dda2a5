// SPDX-License-Identifier: Apache-2.0

// Package access decides which peer may send which request to the API, and how much
// of the process a peer may use. It derives roles from credentials, sets quotas for
// connections, expensive requests and bodies, and sets the deadlines of the HTTP
// server. Package control has the handlers of the API.
//
// A connection passes the Listener: identity and connection quota. A request passes
// the Mux: role of its route, body, quota of expensive requests, deadline of the
// answer, log.
package access

import (
	"fmt"
	"net"
	"slices"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// Role is a peer's permission. A higher role includes the lower ones.
type Role uint8

const (
	None  Role = iota // no request is allowed
	Read              // requests that change nothing and show no payload of frames
	Write             // all requests
)

var roleNames = [...]string{"none", "read", "write"}

func (r Role) String() string { return roleNames[r] }

// ParseRole parses a role; "all" is another word for "write".
func ParseRole(word string) (Role, bool) {
	if word == "all" {
		return Write, true
	}
	i := slices.Index(roleNames[:], word)
	return Role(max(i, 0)), i >= 0
}

// Peer is the remote end of a connection, as the kernel identifies it.
type Peer struct {
	Role Role
	// Share is the holder that quotas count the peer under: a user, a CID or an
	// address.
	Share string
	// Name is for logs and errors: Share, and the process or port if known.
	Name string
}

// NoGroup stands for a group that is not configured.
const NoGroup = -1

// Policy derives roles from credentials. The zero value is not useful, because its
// groups 0 are root's.
type Policy struct {
	UID        int // user of the daemon
	WriteGroup int // NoGroup: no such group
	ReadGroup  int // NoGroup: no such group
	CIDs       map[uint32]Role
}

// Unix returns the role of a process with this user and these primary and
// supplementary groups.
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

// DefaultCIDs returns the roles for vsock peers: Write for the host, which controls
// this machine anyway. Vsock has no credentials. CID 1 is any process of this
// machine, including the front ends of guests; higher CIDs are guests. The operator
// must list both to let them in.
func DefaultCIDs() map[uint32]Role { return map[uint32]Role{vsock.Host: Write} }

// Identify returns the peer of an accepted connection. It never blocks.
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

// credentials returns the user and groups that the connecting process had when it
// connected (unix(7): SO_PEERCRED; SO_PEERGROUPS for supplementary groups).
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
