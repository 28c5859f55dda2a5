// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"net/netip"
	"time"

	"weft/central/centraltest"
)

// This file simulates pings of guests. The simulated guests of two ports ping each
// other like guests behind a real switch. The guest of a new port begins when its port
// is in its network. It asks for its peer with ARP and sends an echo request. The
// peer's guest asks for the new port with ARP and answers. A switch that does not know
// an address asks its agent while the frame waits. A frame is lost if the switch does
// not learn the address, and the guest asks again after arpRetry. The transport of
// frames takes no time.

const (
	// arpRetry is the time after which Linux repeats an unanswered ARP request.
	arpRetry = time.Second
	// heldFor is how long a switch holds a frame that waits for an address.
	heldFor = time.Second
	// pingPoll is the interval at which a simulated guest checks whether its switch
	// knows an address.
	pingPoll = 500 * time.Microsecond
)

// ping returns the time at which the peer has answered the first ping of a new port. It
// returns 0 if ctx ends first.
func (f *fleet) ping(ctx context.Context, p, peer *placed) time.Duration {
	here, there := f.hosts[p.host], f.hosts[peer.host]
	if !poll(ctx, func() bool { return here.recorder().Here(p.key.VNI, p.key.MAC) }) ||
		!here.resolve(ctx, p.Name, peer.key) || !there.resolve(ctx, peer.Name, p.key) {
		return 0
	}
	return clock()
}

// resolve waits until the host's switch knows the address k, which a frame of the port
// needs. It returns false if ctx ends first.
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
