package access

import (
	"fmt"
	"net/http"
	"sync"

	"weft/control/limits"
)

// MaxStreams bounds the answers that go on for as long as the client listens: monitors,
// captures, live traces, dumps of connections. Each has a backlog. Further ones are
// refused. A peer has at most as many as it leaves free, and those who only read leave
// writersReserve.
const MaxStreams = 64

// Streams shares them out.
type Streams struct {
	mu      sync.Mutex
	count   int
	peers   map[string]int
	routes  map[string]int // by route
	readers map[string]int // of peers who only read, by route
	refused uint64
}

// NewStreams makes Streams without any.
func NewStreams() *Streams {
	return &Streams{peers: map[string]int{}, routes: map[string]int{}, readers: map[string]int{}}
}

// LimitRows is a limits.Source.
func (s *Streams) LimitRows(emit func(limits.Row)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	emit(limits.Row{Name: "api_streams", Unit: "streams", Holder: limits.All(),
		Used: uint64(s.count), Limit: MaxStreams, Refused: s.refused})
	for share, has := range s.peers {
		emit(limits.Row{Name: "api_streams", Unit: "streams", Holder: limits.Peer(share),
			Used: uint64(has), Limit: uint64(has + (MaxStreams-s.count-min(has, MaxStreams-s.count)+1)/2)})
	}
}

// begin takes a stream of a route for a peer until done.
func (s *Streams) begin(peer Peer, pattern string, route *Route) (done func(), err error) {
	limit, reader := MaxStreams, 0
	if peer.Role < Write {
		limit, reader = limit-writersReserve, 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.readers[pattern]; reader > 0 && route.Readers > 0 && n >= route.Readers {
		s.refused++
		return nil, fmt.Errorf("%s: %d clients who may only look are served already, the most possible; end one, and try again", pattern, n)
	}
	if n := s.routes[pattern]; route.Most > 0 && n >= route.Most {
		s.refused++
		return nil, fmt.Errorf("%s: %d clients are served already, the most possible; end one, and try again", pattern, n)
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

// Pace has the answer written to w under a deadline that moves with its bytes, as all
// answers but streams are. It is for the part of a stream that is a dump.
func Pace(w http.ResponseWriter) http.ResponseWriter { return newPaced(w) }
