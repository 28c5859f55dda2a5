// SPDX-License-Identifier: Apache-2.0

package hub

// Stall makes all sessions wait for their turn, as under endless load.
func (h *Hub) Stall() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stalled, h.pacer.rate, h.pacer.tokens = true, 0, 0
}
