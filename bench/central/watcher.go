// SPDX-License-Identifier: Apache-2.0

package central

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft/central/centraltest"
	"weft/control/agent"
)

// watcher measures how long hosts take to learn a new port. It also detects wrong bindings: two hosts
// must not be bound to the same port with the same generation, which is the revision of the write that
// binds the port.
type watcher struct {
	count atomic.Int32 // number of entries of pending, which is read without the lock

	mu      sync.Mutex // guards the fields below
	pending map[centraltest.AddressKey]*awaited
	owners  map[generationKey]int // index of the host that was bound to the port in this generation
	wrong   []string              // descriptions of ports to which two hosts were bound in one generation
	// pings has the times from the declaration of a port to the first answered ping from the port to a
	// peer. complete has the times until every host of the port's network knew the port.
	pings, complete []time.Duration
	silent          int // number of ports whose ping was never answered
	unfinished      int // number of ports that were deleted before all hosts knew them
}

type generationKey struct {
	address    centraltest.AddressKey
	generation int64
}

// awaited is a declared port that some hosts do not know yet.
type awaited struct {
	port     *placed
	remote   netip.Addr
	declared time.Duration
	hosts    map[int]struct{} // indexes of the hosts that do not know the port yet
}

// expect makes the watcher wait until all hosts know a new port. The keys of hostIndexes are the hosts
// that must learn it. expect ignores real hosts, whose indexes are simulated or higher.
func (w *watcher) expect(p *placed, hostIndexes map[int]int, simulated int) {
	a := &awaited{port: p, remote: endpointOf(p.host), declared: clock(), hosts: map[int]struct{}{}}
	for n := range hostIndexes {
		if n < simulated {
			a.hosts[n] = struct{}{}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending[p.key] = a
	w.count.Store(int32(len(w.pending)))
}

func (w *watcher) joins(net string, h *host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, a := range w.pending {
		if a.port.Net == net && !h.recorder().Has(k.VNI, k.MAC) {
			a.hosts[h.n] = struct{}{}
		}
	}
}

func (w *watcher) leaves(net string, h *host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, a := range w.pending {
		if a.port.Net == net {
			delete(a.hosts, h.n)
			w.settle(k, a)
		}
	}
}

func (w *watcher) withdraw(p *placed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waiting := w.pending[p.key]; waiting {
		delete(w.pending, p.key)
		w.unfinished++
		w.count.Store(int32(len(w.pending)))
	}
}

func (w *watcher) applied(h *host, c *agent.Changes) {
	w.own(h, c)
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range c.Addresses {
		a := &c.Addresses[i]
		k := centraltest.AddressKey{VNI: a.VNI, MAC: a.MAC}
		p := w.pending[k]
		if p == nil {
			continue
		}
		if p.port.host == h.n {
			if a.Port != p.port.Name {
				continue
			}
		} else if a.Remote != p.remote {
			continue
		}
		delete(p.hosts, h.n)
		w.settle(k, p)
	}
}

// settle records the time that a port took, and no longer awaits it, once all hosts know it. The caller
// holds mu.
func (w *watcher) settle(k centraltest.AddressKey, p *awaited) {
	if len(p.hosts) == 0 {
		w.complete = append(w.complete, clock()-p.declared)
		delete(w.pending, k)
		w.count.Store(int32(len(w.pending)))
	}
}

func (w *watcher) own(h *host, c *agent.Changes) {
	for i := range c.Addresses {
		a := &c.Addresses[i]
		if a.Port == "" {
			continue
		}
		w.mu.Lock()
		k := generationKey{centraltest.AddressKey{VNI: a.VNI, MAC: a.MAC}, a.Generation}
		if other, known := w.owners[k]; known && other != h.n {
			w.wrong = append(w.wrong, fmt.Sprintf("port %s: hosts %d and %d are both bound at generation %d", a.Port, other, h.n, a.Generation))
		}
		w.owners[k] = h.n
		w.mu.Unlock()
	}
}

func (w *watcher) note(answered, began time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if answered == 0 {
		w.silent++
	} else {
		w.pings = append(w.pings, answered-began)
	}
}

func (w *watcher) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pings, w.complete, w.unfinished, w.silent = nil, nil, 0, 0
}

// figures are what the watcher has measured. Each list of times is in ascending order. pings has the
// time never for each port in silent, and complete has it for each port in unfinished.
type figures struct {
	pings, complete []time.Duration
	silent          int // ports whose first ping was not answered
	unfinished      int // ports that some host did not know, either up to their deletion or up to now
}

func (w *watcher) take() figures {
	w.mu.Lock()
	defer w.mu.Unlock()
	unfinished := w.unfinished + len(w.pending)
	return figures{WithNever(w.pings, w.silent), WithNever(w.complete, unfinished), w.silent, unfinished}
}

// never is the time of an event that did not happen. It is above every limit that a test checks.
// Infinity would not work, because JSON has no such number.
const never = time.Hour

// WithNever returns the times in ascending order. It appends the time never "count" times, for events
// that did not happen. A quantile then treats these events as very late.
func WithNever(times []time.Duration, count int) []time.Duration {
	list := slices.Clone(times)
	slices.Sort(list)
	return append(list, slices.Repeat([]time.Duration{never}, count)...)
}

// Quantile returns the value at the share (0 to 1) of a sorted list: share 0.5 gives the median. It
// returns zero if the list is empty.
func Quantile[T any](sorted []T, share float64) (value T) {
	if len(sorted) == 0 {
		return value
	}
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
