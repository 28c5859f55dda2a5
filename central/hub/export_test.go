// SPDX-License-Identifier: Apache-2.0

package hub

// Stall makes all sessions wait before they get a batch, as under endless load.
func (h *Hub) Stall() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stalled, h.pacer.rate, h.pacer.tokens = true, 0, 0
}

// Held returns the total number of interests (addresses that a host has asked for) and
// unanswered questions of all sessions.
func (h *Hub) Held() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		n += len(s.interests) + len(s.interest)
	}
	return n
}
