// SPDX-License-Identifier: Apache-2.0

package access

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxGroups is the kernel's NGROUPS_MAX.
const maxGroups = 65536

// peerGroups returns the supplementary groups of the process at the other end of a unix
// socket. Package unix has no function for SO_PEERGROUPS.
func peerGroups(fd int) ([]uint32, error) {
	for n := 32; ; n = maxGroups {
		gids := make([]uint32, n)
		size := uint32(4 * n)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&gids[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return gids[:size/4], nil
		case errno != unix.ERANGE || n == maxGroups:
			return nil, errno
		}
	}
}
