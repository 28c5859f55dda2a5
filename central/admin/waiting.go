// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"sync"
	"time"

	"weft/central/wire"
)

// followEvery is the interval at which a central looks for other centrals that have started. It calls
// Waiting of each, which reports the undeclared ports of that central's hosts.
const followEvery = 3 * time.Second

// FollowPeers calls the gRPC method Waiting of each other central, again after an error, until ctx
// ends.
func (s *Service) FollowPeers(ctx context.Context) {
	if s.Dial == nil {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	var mu sync.Mutex // guards followed
	followed := map[string]bool{}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		limit, cancel := context.WithTimeout(ctx, peerTimeout)
		centrals, _ := s.Store.Centrals(limit) // error ignored: the next tick tries again
		cancel()
		mu.Lock()
		for _, c := range centrals {
			if c.Name == s.Name || followed[c.Address] {
				continue
			}
			followed[c.Address] = true
			running.Go(func() {
				s.followWaiting(ctx, c.Address)
				mu.Lock()
				defer mu.Unlock()
				delete(followed, c.Address)
			})
		}
		mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// followWaiting calls Waiting of another central and passes the reported ports to the hub until the
// call ends. It ignores errors. Without the reports, it only takes a second transaction to bind such a
// port.
func (s *Service) followWaiting(ctx context.Context, address string) {
	conn, err := s.dial(address)
	if err != nil {
		return
	}
	stream, err := wire.NewPeerClient(conn).Waiting(ctx, &wire.WaitingRequest{})
	if err != nil {
		return
	}
	defer s.Hub.ForgetWaiting(address)
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		s.Hub.NoteWaiting(address, m.GetPorts())
	}
}
