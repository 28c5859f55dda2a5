// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"time"

	"golang.org/x/sys/unix"
)

func readable(fd int, timeout time.Duration) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, int(timeout.Milliseconds()))
		if err != unix.EINTR {
			return n == 1
		}
	}
}
