// SPDX-License-Identifier: Apache-2.0

package shm

import "golang.org/x/sys/unix"

// Weft has two kinds of eventfds. An own event is shared by Weft's processes only. It
// is always non-blocking; SignalOwn and DrainOwn write and read it. The eventfds of a
// front end are Foreign, and only Foreign's methods may touch them.

// NewEvent makes an own event: an eventfd, non-blocking and closed on exec.
func NewEvent() (int, error) { return unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) }

var one = [8]byte{1}

// SignalOwn makes an own event readable. It would block on an eventfd whose
// O_NONBLOCK another process clears; see Foreign.
func SignalOwn(fd int) {
	for {
		if _, err := unix.Write(fd, one[:]); err != unix.EINTR {
			return // EAGAIN: the event is readable already
		}
	}
}

// DrainOwn makes an own event unreadable. It has the same restriction as SignalOwn.
func DrainOwn(fd int) {
	var buf [8]byte
	for {
		if _, err := unix.Read(fd, buf[:]); err != unix.EINTR {
			return
		}
	}
}
