// SPDX-License-Identifier: Apache-2.0

package shm

import "golang.org/x/sys/unix"

// Weft uses two kinds of eventfds. Own eventfds are shared only between Weft's
// processes. They are always non-blocking, and SignalOwn and DrainOwn write and read
// them. An eventfd of a vhost-user front end is a Foreign, and only Foreign's methods
// may use it.

// NewEvent creates an own eventfd, which is non-blocking and closed on exec.
func NewEvent() (int, error) { return unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) }

var one = [8]byte{1}

// SignalOwn makes an own eventfd readable. On an eventfd of a front end, which can
// clear O_NONBLOCK, SignalOwn could block (see Foreign).
func SignalOwn(fd int) {
	for {
		if _, err := unix.Write(fd, one[:]); err != unix.EINTR {
			return // EAGAIN: the event is readable already
		}
	}
}

// DrainOwn resets an own eventfd, so that it is not readable. On an eventfd of a
// front end, DrainOwn could block.
func DrainOwn(fd int) {
	var buf [8]byte
	for {
		if _, err := unix.Read(fd, buf[:]); err != unix.EINTR {
			return
		}
	}
}
