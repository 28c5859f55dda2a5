// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"net/netip"
	"time"

	"weft/central/centraltest"
)

// The simulated guests of two ports ping each other as guests behind a real switch do.
// The new port's guest begins once its port is in its network. It asks with ARP for its
// peer, and sends an echo request. The peer's guest asks with ARP for the new port, and
// answers. A switch that does not know an address asks its agent for it while the frame
// waits. A frame whose address the switch does not learn is lost, and the guest asks
// again after arpRetry. Frames themselves take no time.

const (
	// arpRetry is the time after which Linux repeats an unanswered ARP request.
	arpRetry = time.Second
	// heldFor is how long a switch keeps a frame that waits for an address.
	heldFor = time.Second
	// pingPoll is the interval at which a guest looks whether its switch knows an
	// address.
	pingPoll = 500 * time.Microsecond
)

// ping returns the time at which the peer has answered a new port's first ping, or 0 if
// ctx ended before.
func (f *fleet) ping(ctx context.Context, p, peer *placed) time.Duration {
	here, there := f.hosts[p.host], f.hosts[peer.host]
	if !poll(ctx, func() bool { return here.recorder().Here(p.key.VNI, p.key.MAC) }) ||
		!here.resolve(ctx, p.Name, peer.key) || !there.resolve(ctx, peer.Name, p.key) {
		return 0
	}
	return clock()
}

// resolve waits until the host's switch knows an address that a frame of the port needs.
// It returns false if ctx ended before.
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
