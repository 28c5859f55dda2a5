// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// SocketAccess says who may connect to a session's socket. A nil field leaves the kernel's default:
// the daemon's user and group, and the mode that follows from its umask.
type SocketAccess struct {
	UID, GID *int
	Mode     *uint32 // permission bits
}

// errForeignSocket is the error of apply if the file at the path is not the socket that this process has
// made.
var errForeignSocket = errors.New("another process has replaced the socket")

// apply sets the owner and the mode of the socket that listen has just made. A user who
// may write to the directory may have replaced the socket by the socket of another
// process. So apply changes no socket of another user and no hard link.
func (a SocketAccess) apply(n *socketName) error {
	if a == (SocketAccess{}) {
		return nil
	}
	f, err := n.open()
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || st.Nlink != 1 {
		return errForeignSocket
	}
	name := addressOf(f).Name // an O_PATH descriptor takes no fchmod
	if a.Mode != nil {
		if err := unix.Chmod(name, *a.Mode); err != nil {
			return fmt.Errorf("mode %04o: %w", *a.Mode, err)
		}
	}
	uid, gid := -1, -1
	if a.UID != nil {
		uid = *a.UID
	}
	if a.GID != nil {
		gid = *a.GID
	}
	if err := unix.Fchownat(int(f.Fd()), "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("owner: %w", err)
	}
	return nil
}
