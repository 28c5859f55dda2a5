// SPDX-License-Identifier: Apache-2.0

package centraltest

import (
	"net/netip"
	"slices"
	"sync"

	"weft/control/agent"
)

// Recorder is an agent.Switch without a data path: it only records the changes that the agent makes.
type Recorder struct {
	mu        sync.Mutex
	local     []agent.LocalPort
	endpoint  netip.Addr
	nets      map[uint32]agent.Net
	ports     map[string]agent.Port
	addresses map[AddressKey]agent.Address
	unknown   int
	batches   int
	onApply   func(*agent.Changes)
}

// NewRecorder returns a recorder for a switch with these ports.
func NewRecorder(local ...agent.LocalPort) *Recorder {
	return &Recorder{local: local, nets: map[uint32]agent.Net{}, ports: map[string]agent.Port{}, addresses: map[AddressKey]agent.Address{}}
}

// OnApply sets a function that is called after each batch of changes. The function may
// call the recorder.
func (r *Recorder) OnApply(f func(*agent.Changes)) { r.onApply = f }

// Ports implements agent.Switch. It returns the ports from NewRecorder or SetPorts.
func (r *Recorder) Ports() []agent.LocalPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.local)
}

// Trouble implements agent.Switch. It never reports an error.
func (r *Recorder) Trouble() string { return "" }

// SetPorts replaces the ports. The caller then calls the agent's PortsChanged.
func (r *Recorder) SetPorts(local ...agent.LocalPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.local = local
	for name := range r.ports {
		if !slices.ContainsFunc(local, func(l agent.LocalPort) bool { return l.Name == name }) {
			delete(r.ports, name)
			for k, a := range r.addresses {
				if a.Port == name {
					delete(r.addresses, k)
				}
			}
		}
	}
}

// Apply implements agent.Switch. It records the changes.
func (r *Recorder) Apply(c *agent.Changes) error {
	r.apply(c)
	if r.onApply != nil {
		r.onApply(c)
	}
	return nil
}

func (r *Recorder) apply(c *agent.Changes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches++
	if c.Endpoint.IsValid() {
		r.endpoint = c.Endpoint
	}
	for _, n := range c.Nets {
		if !n.Gone {
			r.nets[n.VNI] = n
			continue
		}
		delete(r.nets, n.VNI)
		for k := range r.addresses {
			if k.VNI == n.VNI {
				delete(r.addresses, k)
			}
		}
	}
	for _, p := range c.Ports {
		if p.Gone {
			delete(r.ports, p.Name)
			for k, a := range r.addresses {
				if a.Port == p.Name {
					delete(r.addresses, k)
				}
			}
		} else {
			r.ports[p.Name] = p
		}
	}
	for _, a := range c.Removed {
		k := AddressKey{a.VNI, a.MAC}
		if r.addresses[k].Generation <= a.Generation {
			delete(r.addresses, k)
		}
	}
	for _, a := range c.Addresses {
		k := AddressKey{a.VNI, a.MAC}
		if r.addresses[k].Generation <= a.Generation {
			r.addresses[k] = a
		}
	}
	r.unknown += len(c.Unknown)
}

// Addresses returns the number of MAC addresses that the agent has added.
func (r *Recorder) Addresses() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.addresses)
}

// Has reports whether the agent has added a MAC address in the network with this VNI.
func (r *Recorder) Has(vni uint32, mac uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.addresses[AddressKey{vni, mac}]
	return ok
}

// Here reports whether a MAC address, in the network with this VNI, belongs to a port of this switch.
func (r *Recorder) Here(vni uint32, mac uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addresses[AddressKey{vni, mac}].Port != ""
}

// Unknown returns how often the agent has reported an address that no port has.
func (r *Recorder) Unknown() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unknown
}
