// SPDX-License-Identifier: Apache-2.0

package shm

import "golang.org/x/sys/unix"

// This file has Weft's own eventfds. Weft uses two kinds. Own eventfds are shared only
// between Weft's processes. They are non-blocking, for SignalOwn and DrainOwn. An
// eventfd of a vhost-user front end is a Foreign, and only the methods of Foreign may
// use it.

// NewEvent creates an own eventfd, which is non-blocking and closed on exec.
func NewEvent() (int, error) { return unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) }

var one = [8]byte{1}

// SignalOwn makes an own eventfd readable. It must not be used for an eventfd of a
// front end, where it could block (see Foreign).
func SignalOwn(fd int) {
	for {
		if _, err := unix.Write(fd, one[:]); err != unix.EINTR {
			return // EAGAIN: the event is readable already
		}
	}
}

// DrainOwn resets an own eventfd. It must not be used for an eventfd of a front end,
// where it could block (see Foreign).
func DrainOwn(fd int) {
	var buf [8]byte
	for {
		if _, err := unix.Read(fd, buf[:]); err != unix.EINTR {
			return
		}
	}
}
