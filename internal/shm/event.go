// SPDX-License-Identifier: Apache-2.0

package shm

import "golang.org/x/sys/unix"

// This file has Weft's own eventfds, which only Weft's processes share. They are non-blocking, so SignalOwn
// and DrainOwn never block on them. The eventfds of vhost-user front ends are the other kind: only the
// methods of Foreign may use them.

// NewEvent creates an eventfd of Weft's own, which is non-blocking and closed on exec. The caller owns
// it.
func NewEvent() (int, error) { return unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) }

var one = [8]byte{1}

// SignalOwn makes an eventfd of Weft's own readable. It must not be used for an eventfd of a front end, on
// which it could block: see Foreign.
func SignalOwn(fd int) {
	for {
		if _, err := unix.Write(fd, one[:]); err != unix.EINTR {
			return // EAGAIN: the event is readable already
		}
	}
}

// DrainOwn reads an eventfd of Weft's own, which is then not readable. It must not be used for an eventfd
// of a front end, on which it could block: see Foreign.
func DrainOwn(fd int) {
	var buf [8]byte
	for {
		if _, err := unix.Read(fd, buf[:]); err != unix.EINTR {
			return
		}
	}
}
