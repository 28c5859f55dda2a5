// SPDX-License-Identifier: Apache-2.0

package hub

// HostsOf returns the declared hosts on which a port of the network is, as a map of id to name. Frames
// for a port of the network may come from any of these hosts.
func (h *Hub) HostsOf(net string) map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	names := map[string]string{}
	n := h.fleet.nets[net]
	if n == nil {
		return names
	}
	for p := range n.ports {
		if id := p.bind.GetHost(); id != "" {
			if at := h.fleet.hosts[id]; !at.deleted() {
				names[id] = at.declared.GetName()
			}
		}
	}
	return names
}
