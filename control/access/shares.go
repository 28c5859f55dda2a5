// SPDX-License-Identifier: Apache-2.0

package access

import "sync"

// shares has a semaphore for each client with requests in progress. limit is the number of requests that
// one client may have in progress. It is set before the first use.
type shares struct {
	limit int

	mu      sync.Mutex
	holders map[string]*share
}

type share struct {
	slots chan struct{}
	users int
}

// semaphore returns the semaphore of a peer, and makes it if there is none. The caller calls leave when it
// no longer uses the semaphore.
func (s *shares) semaphore(peer string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders == nil {
		s.holders = map[string]*share{}
	}
	one := s.holders[peer]
	if one == nil {
		one = &share{slots: make(chan struct{}, s.limit)}
		s.holders[peer] = one
	}
	one.users++
	return one.slots
}

func (s *shares) leave(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.holders[peer]; one != nil {
		if one.users--; one.users == 0 {
			delete(s.holders, peer)
		}
	}
}
