// SPDX-License-Identifier: Apache-2.0

package access

import "sync"

// shares has a semaphore for each peer with requests in progress. limit is the number
// of requests of one peer, set before the first use.
type shares struct {
	limit int

	mu  sync.Mutex
	all map[string]*share
}

type share struct {
	slots chan struct{}
	users int
}

// semaphore returns the semaphore of a peer. The caller calls leave afterwards.
func (s *shares) semaphore(peer string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]*share{}
	}
	one := s.all[peer]
	if one == nil {
		one = &share{slots: make(chan struct{}, s.limit)}
		s.all[peer] = one
	}
	one.users++
	return one.slots
}

func (s *shares) leave(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.all[peer]; one != nil {
		if one.users--; one.users == 0 {
			delete(s.all, peer)
		}
	}
}
