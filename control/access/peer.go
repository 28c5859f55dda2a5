// Package access decides who may ask the API for what, and how much of the process a
// peer may occupy: roles by credentials, shares of connections, expensive requests and
// bodies, and the deadlines of the HTTP side. The API's handlers are package control's.
//
// A connection passes the Listener (identity, share of connections), a request the Mux
// (role of its route, body, share of expensive requests, deadline of the answer, log).
package access

import (
	"fmt"
	"net"
	"slices"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// Role is what a peer may ask for. A higher role includes the lower ones.
type Role uint8

// Roles.
const (
	None  Role = iota // nothing: every request is refused
	Read              // what changes nothing and shows no payload of frames
	Write             // everything
)

var roleNames = [...]string{"none", "read", "write"}

func (r Role) String() string { return roleNames[r] }

// ParseRole reads a role; all is another word for write.
func ParseRole(word string) (Role, bool) {
	if word == "all" {
		return Write, true
	}
	i := slices.Index(roleNames[:], word)
	return Role(max(i, 0)), i >= 0
}

// Peer is the other end of a connection, as the kernel names it.
type Peer struct {
	Role Role
	// Share is the holder that the peer's use counts for: a user, a CID, an address.
	Share string
	// Name is for logs and errors: Share, and the process or port where it is known.
	Name string
}

// NoGroup stands for a group that is not configured.
const NoGroup = -1

// Policy gives roles. The zero value is not useful: groups 0 are root's.
type Policy struct {
	UID        int // of the daemon
	WriteGroup int // NoGroup: none
	ReadGroup  int // NoGroup: none
	CIDs       map[uint32]Role
}

// Unix is the role of a process by its user and its groups, primary and supplementary.
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

// DefaultCIDs lets the host of this machine in, which owns the machine anyway. Vsock
// has no credentials: CID 1 is any process of this machine, front ends of guests
// included, and higher CIDs are guests. Both must be named to be let in.
func DefaultCIDs() map[uint32]Role { return map[uint32]Role{vsock.Host: Write} }

// Identify names the peer of an accepted connection. It makes no call that blocks.
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

// credentials are those of the process that connected, as of then: unix(7), SO_PEERCRED,
// and SO_PEERGROUPS for supplementary groups.
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
