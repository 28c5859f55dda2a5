// SPDX-License-Identifier: Apache-2.0

package hub

// Stall makes all sessions wait for their turn, as under endless load.
func (h *Hub) Stall() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stalled, h.pacer.rate, h.pacer.tokens = true, 0, 0
}

// Held returns how many interests and unanswered questions the sessions have.
func (h *Hub) Held() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		n += len(s.interests) + len(s.interest)
	}
	return n
}
