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

// watcher measures when hosts know a new port. It also detects a generation that two
// hosts have.
type watcher struct {
	count atomic.Int32 // number of entries in pending

	mu      sync.Mutex // guards the fields below
	pending map[centraltest.AddressKey]*awaited
	owners  map[generationKey]int // index of the host with this port and generation
	wrong   []string              // errors: generations that two hosts had
	// Times since a port's declaration. A pair time ends when two peers know each
	// other, an all time when every host of the network knows the port.
	pair, all []time.Duration
	late      int // number of ports deleted before all hosts knew them
}

type generationKey struct {
	address    centraltest.AddressKey
	generation int64
}

// awaited is a port that some host does not know yet.
type awaited struct {
	port     *placed
	peer     *placed // another port of the same network; may be nil
	remote   netip.Addr
	declared time.Duration
	hosts    map[int]struct{} // indexes of the hosts without the port
	paired   bool
}

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

// joins records the first port of a host in a network, leaves the deletion of the
// last.
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

func (w *watcher) withdraw(p *placed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waiting := w.pending[p.key]; waiting {
		delete(w.pending, p.key)
		w.late++
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

// The caller holds mu.
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

// own checks that no other host had the same port under the same generation.
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

// note records the time until two ports knew each other. A negative time means that
// they never did.
func (w *watcher) note(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if took < 0 {
		w.late++
	} else {
		w.pair = append(w.pair, took)
	}
}

func (w *watcher) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pair, w.all, w.late = nil, nil, 0
}

// take returns the measured times in ascending order, and the numbers of deleted
// (late) and unfinished (open) ports.
func (w *watcher) take() (pair, all []time.Duration, late, open int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pair, all = slices.Clone(w.pair), slices.Clone(w.all)
	slices.Sort(pair)
	slices.Sort(all)
	return pair, all, w.late, len(w.pending)
}

// quantile returns a quantile of a sorted list, or zero if the list is empty.
func quantile[T any](sorted []T, share float64) (value T) {
	if len(sorted) == 0 {
		return value
	}
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}
