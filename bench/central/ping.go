// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"net/netip"
	"time"

	"weft/central/centraltest"
)

// The functions below simulate the first ping of a new port. The simulated guests behave like guests
// behind a real switch. When the new port is in its network, its guest asks for its peer with ARP and
// sends an echo request. The peer's guest asks for the new port with ARP and answers. If a switch does
// not know an address, it asks its agent and keeps the frame meanwhile. If it does not learn the
// address, the frame is lost, and the guest repeats its ARP request after arpRetry. Frames take no
// time on the way.

const (
	// arpRetry is the time after which Linux repeats an ARP request that was not answered.
	arpRetry = time.Second
	// heldFor is how long a switch keeps a frame whose address it does not know.
	heldFor = time.Second
	// pingPoll is the interval at which a simulated guest checks whether its switch
	// knows an address.
	pingPoll = 500 * time.Microsecond
)

// ping waits until a new port and its peer can reach each other. It returns the time at which the
// first ping is answered, or 0 if ctx ends first.
func (f *fleet) ping(ctx context.Context, p, peer *placed) time.Duration {
	here, there := f.hosts[p.host], f.hosts[peer.host]
	if !poll(ctx, func() bool { return here.recorder().Here(p.key.VNI, p.key.MAC) }) ||
		!here.resolve(ctx, p.Name, peer.key) || !there.resolve(ctx, peer.Name, p.key) {
		return 0
	}
	return clock()
}

// resolve waits until the host's switch knows the address k, to which the port with the name "port"
// sends a frame. It returns false if ctx ends first.
func (h *host) resolve(ctx context.Context, port string, k centraltest.AddressKey) bool {
	for ctx.Err() == nil {
		began, absent := clock(), h.absent(k)
		if h.recorder().Has(k.VNI, k.MAC) {
			return true
		}
		if h.agent().Ask(port, k.VNI, k.MAC, netip.Addr{}) {
			held, cancel := context.WithTimeout(ctx, heldFor)
			known := poll(held, func() bool { return h.recorder().Has(k.VNI, k.MAC) || h.absent(k) != absent })
			cancel()
			if known && h.recorder().Has(k.VNI, k.MAC) {
				return true
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(arpRetry - (clock() - began)):
		}
	}
	return false
}

func (h *host) absent(k centraltest.AddressKey) int {
	r := h.run.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unknown[k]
}

func poll(ctx context.Context, check func() bool) bool {
	for !check() {
		if ctx.Err() != nil {
			return false
		}
		time.Sleep(pingPoll)
	}
	return true
}
