// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"golang.org/x/sys/unix"
)

// Files returns duplicates of the descriptors of all files whose memory a worker accesses for
// this front end: the guest's memory, the dirty log and the inflight buffer. The caller closes
// them. A descriptor that cannot be duplicated is left out. Any goroutine may call Files.
func (s *Session) Files() (fds []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add := func(fd int) {
		if dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			fds = append(fds, dup)
		}
	}
	for i := range s.front.Regions {
		add(s.front.Regions[i].FD)
	}
	if s.front.Log.Size > 0 {
		add(s.front.Log.FD)
	}
	if s.front.Inflight.Size > 0 {
		add(s.front.Inflight.FD)
	}
	return fds
}
