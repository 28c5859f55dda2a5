// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"maps"
	"sync"

	"weft/control/limits"
	"weft/vhost"
)

// sessions has the open vhost-user sessions by port number. The watchdog and `weft show limits` read it
// without the configuration lock. No other lock is taken while mu is held.
type sessions struct {
	mu   sync.Mutex
	open map[uint32]*vhost.Session
}

func newSessions() *sessions { return &sessions{open: map[uint32]*vhost.Session{}} }

func (l *sessions) set(port uint32, s *vhost.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s == nil {
		delete(l.open, port)
		return
	}
	l.open[port] = s
}

// files returns duplicates of the descriptors of a port's guest memory files. The caller closes them.
func (l *sessions) files(port uint32) []int {
	l.mu.Lock()
	s := l.open[port]
	l.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.Files()
}

// limitRows reports the limit of messages of each vhost-user front end, and its use. The limit is a
// token bucket. The column Refused counts the messages that had to wait.
func (l *sessions) limitRows(emit func(limits.Row)) {
	l.mu.Lock()
	open := maps.Clone(l.open)
	l.mu.Unlock()
	for port, s := range open {
		spent, limit, throttled := s.Budget()
		if spent == 0 && throttled == 0 {
			continue
		}
		emit(limits.Row{Name: "front_end_messages", Unit: "messages", Holder: limits.Port(port),
			Used: uint64(spent), Guarantee: uint64(limit), Limit: uint64(limit), Refused: throttled})
	}
}
