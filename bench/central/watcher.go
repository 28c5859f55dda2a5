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

// watcher sees every change of every switch. It finds out when a new port is where it
// should be, and whether two hosts ever had a port by one generation.
type watcher struct {
	count atomic.Int32 // of pending

	mu      sync.Mutex // guards what follows
	pending map[centraltest.AddressKey]*awaited
	owners  map[generationKey]int // host that had a port by a generation
	wrong   []string              // violations
	// pair and all are the times from a port's declaration until its own host and that
	// of one other port of its network have both, and until all hosts have it.
	pair, all []time.Duration
	late      int // ports that not all hosts had in time
}

type generationKey struct {
	address    centraltest.AddressKey
	generation int64
}

// awaited is a port that was declared and that not all hosts have yet.
type awaited struct {
	port     *placed
	peer     *placed // another port of the network
	remote   netip.Addr
	declared time.Duration
	hosts    map[int]struct{} // those that lack the address
	paired   bool
}

// expect begins to wait for a port.
func (w *watcher) expect(p, peer *placed, hosts map[int]int) {
	a := &awaited{port: p, peer: peer, remote: endpointOf(p.host), declared: clock(), hosts: map[int]struct{}{}}
	for n := range hosts {
		a.hosts[n] = struct{}{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending[p.key] = a
	w.count.Store(int32(len(w.pending)))
}

// joins says that a host gets its first port in a network, or loses its last one.
func (w *watcher) joins(net string, h *host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, a := range w.pending {
		if a.port.Net == net && !h.recorder.Has(k.VNI, k.MAC) {
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

// withdraw ends the wait for a port that is deleted.
func (w *watcher) withdraw(p *placed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waiting := w.pending[p.key]; waiting {
		delete(w.pending, p.key)
		w.late++
		w.count.Store(int32(len(w.pending)))
	}
}

// applied takes the changes of a host's switch.
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
			if a.Port != p.port.Name || p.peer != nil && !h.recorder.Has(p.peer.key.VNI, p.peer.key.MAC) {
				continue
			}
		} else if a.Remote != p.remote {
			continue
		}
		delete(p.hosts, h.n)
		w.settle(k, p)
	}
}

// settle notes what has been reached. The caller holds mu.
func (w *watcher) settle(k centraltest.AddressKey, p *awaited) {
	took := clock() - p.declared
	_, own := p.hosts[p.port.host]
	other := false
	if p.peer != nil {
		_, other = p.hosts[p.peer.host]
	}
	if !p.paired && !own && !other {
		p.paired = true
		w.pair = append(w.pair, took)
	}
	if len(p.hosts) == 0 {
		w.all = append(w.all, took)
		delete(w.pending, k)
		w.count.Store(int32(len(w.pending)))
	}
}

// own checks that no two hosts have a port by the same generation.
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

// note adds the time of a pair that asked for each other, negative if it was too long.
func (w *watcher) note(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if took < 0 {
		w.late++
	} else {
		w.pair = append(w.pair, took)
	}
}

// reset forgets the times so far.
func (w *watcher) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pair, w.all, w.late = nil, nil, 0
}

// take returns the sorted times, and how many ports not all hosts had in time or have not yet.
func (w *watcher) take() (pair, all []time.Duration, late, open int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pair, all = slices.Clone(w.pair), slices.Clone(w.all)
	slices.Sort(pair)
	slices.Sort(all)
	return pair, all, w.late, len(w.pending)
}

// quantile returns the value below which a share of a sorted list is; 0 for none.
func quantile[T any](sorted []T, share float64) (value T) {
	if len(sorted) == 0 {
		return value
	}
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
