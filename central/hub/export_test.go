// SPDX-License-Identifier: Apache-2.0

package hub

// Stall makes all sessions wait for their turn, as under endless load.
func (h *Hub) Stall() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pacer.rate, h.pacer.tokens = 0, 0
}
