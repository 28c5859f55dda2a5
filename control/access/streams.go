// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"net/http"
	"sync"

	"weft/control/limits"
)

// maxStreams limits the streams in progress. A stream is a response without end, such as a monitor or a
// capture. The limit of one client is the number of streams that are still free. Clients with role Read
// cannot use the last writersReserve streams.
const maxStreams = 64

// Streams counts the streams in progress, by client and by API route. It also counts the requests of each
// route that has a limit of its own (Route.Most).
type Streams struct {
	mu      sync.Mutex
	count   int
	peers   map[string]int
	routes  map[string]int // number of streams, by API route
	readers map[string]int // number of streams of peers with role Read, by API route
	refused uint64
}

func newStreams() *Streams {
	return &Streams{peers: map[string]int{}, routes: map[string]int{}, readers: map[string]int{}}
}

// LimitRows emits the rows of `weft show limits` about streams: one in total, and one for each client.
func (s *Streams) LimitRows(emit func(limits.Row)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	emit(limits.Row{Name: "api_streams", Unit: "streams", Holder: limits.All(),
		Used: uint64(s.count), Limit: maxStreams, Refused: s.refused})
	for share, has := range s.peers {
		emit(limits.Row{Name: "api_streams", Unit: "streams", Holder: limits.Peer(share),
			Used: uint64(has), Limit: uint64(has + (maxStreams-s.count-min(has, maxStreams-s.count)+1)/2)})
	}
}

func (s *Streams) begin(peer Peer, pattern string, route *Route) (release func(), err error) {
	limit, reader := maxStreams, 0
	if peer.Role < Write {
		limit, reader = limit-writersReserve, 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.readers[pattern]; reader > 0 && route.Readers > 0 && n >= route.Readers {
		s.refused++
		return nil, fmt.Errorf("%s: %d read-only clients are served already, which is the limit; end one, and try again", pattern, n)
	}
	if n := s.routes[pattern]; route.Most > 0 && n >= route.Most {
		s.refused++
		return nil, fmt.Errorf("%s: %d clients are served already, which is the limit; end one, and try again", pattern, n)
	}
	if has := s.peers[peer.Share]; has >= limit-s.count {
		s.refused++
		return nil, fmt.Errorf("%s has %d of %d monitors, captures and other streams already; end some, and try again", peer.Share, has, s.count)
	}
	s.count++
	s.peers[peer.Share]++
	s.routes[pattern]++
	s.readers[pattern] += reader
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.count--
		s.routes[pattern]--
		s.readers[pattern] -= reader
		if s.peers[peer.Share]--; s.peers[peer.Share] == 0 {
			delete(s.peers, peer.Share)
		}
	}, nil
}

// Pace returns a ResponseWriter whose write deadline moves forward with each byte written. An ordinary
// response is written through it as a whole. A stream uses it only for the objects that exist when the
// stream begins.
func Pace(w http.ResponseWriter) http.ResponseWriter { return newPaced(w) }
