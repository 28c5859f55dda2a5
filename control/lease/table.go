// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"sync"

	"weft/control/limits"
	"weft/port"
)

const (
	// requestIntervalNS is the average time between two requests of one port that are answered.
	// requestBurst is the number of requests that are answered at once. A client of DHCP sends
	// two for its address and repeats each after 4 s or more (RFC 2131 section 4.1).
	requestIntervalNS = 100_000_000
	requestBurst      = 32
)

// Table has the declarations of the ports of this host. No other lock is taken while its mutex is held.
type Table struct {
	mu     sync.Mutex
	ports  map[string]*account // by the name of the port
	counts Counts
}

// Counts has the number of requests with each Result.
type Counts [results]uint64

// ByResult returns the counts by the results' names.
func (c Counts) ByResult() map[string]uint64 {
	named := map[string]uint64{}
	for result, count := range c {
		named[resultNames[result]] = count
	}
	return named
}

// account has the declaration of a port, and the token bucket that limits the port's requests.
type account struct {
	port    *Port
	number  uint32 // port number; 0 before the port's first request
	fullNS  uint64 // see port.TakeToken
	refused uint64
}

// NewTable returns a table without ports.
func NewTable() *Table { return &Table{ports: map[string]*account{}} }

// Set replaces the declarations of the named ports; nil removes one. A port that stays keeps the
// state of its token bucket.
func (t *Table) Set(changes map[string]*Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, p := range changes {
		switch a := t.ports[name]; {
		case p == nil:
			delete(t.ports, name)
		case a == nil:
			t.ports[name] = &account{port: p}
		default:
			a.port = p
		}
	}
}

// Answer returns the answer to a frame of the port with this name and number, or nil. frame may have only
// the first bytes of the frame. length is the length of the whole frame. nowNS is the time of a monotonic
// clock in nanoseconds.
func (t *Table) Answer(name string, number uint32, frame []byte, length int, nowNS uint64) []byte {
	p, ok := t.admit(name, number, length, nowNS)
	result := Limited
	var answer []byte
	if ok {
		answer, result = Answer(p, frame)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[result]++
	return answer
}

// admit returns the port's declaration; nil: none. ok is false if the port has used up its limit, or
// if the frame is longer than MaxRequest.
func (t *Table) admit(name string, number uint32, length int, nowNS uint64) (p *Port, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.ports[name]
	if a == nil {
		return nil, true
	}
	a.number = number
	if length > MaxRequest || !port.TakeToken(&a.fullNS, nowNS, requestIntervalNS, requestBurst) {
		a.refused++
		return nil, false
	}
	return a.port, true
}

// Counts returns the numbers of requests by Result.
func (t *Table) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}

// LimitRows emits the rows of `weft show limits` about refused requests of guests: one for each port that
// has any, and one in total.
func (t *Table) LimitRows(emit func(limits.Row)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.ports {
		if a.refused > 0 {
			emit(limits.Row{Name: "guest_requests", Unit: "requests", Holder: limits.Port(a.number), Limit: requestBurst, Refused: a.refused})
		}
	}
	emit(limits.Row{Name: "guest_requests", Unit: "requests", Holder: limits.All(), Refused: t.counts[Limited]})
}
